"""A writer thread over a plain file, so that the engine can be tested without LMDB."""

import threading

from mtrains import _native

SEGMENT_STRIDE = 1 << 20


class FlatLog:
    """Commits what the engine seals into slots of 1 MiB of one file; reuses the slots of deleted segments."""

    def __init__(self, engine, path, io_engine="auto"):
        self.engine = engine
        self.file = open(path, "w+b")  # noqa: SIM115
        self.file.truncate(4096)
        self.effective = engine.open_log(str(path), io_engine)
        self.offset_of = {}
        self.free = []
        self.end = 0
        self.checkpoints = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stop.is_set():
            self.commit(timeout=0.05)

    def commit(self, timeout=0.0):
        segments = self.engine.next_sealed(16, timeout)
        if not segments:
            return 0
        for number, _ in self.engine.take_deletable(self.checkpoints, 64):
            self.free.append(self.offset_of.pop(number))
            self.engine.deleted([number])
        offsets = []
        for segment in segments:
            segment.seal(b'{"tables": %d}' % len(segment.tables))
            offset = self.free.pop() if self.free else self.end
            self.end = max(self.end, offset + SEGMENT_STRIDE)
            self.file.seek(offset + 16)
            self.file.write(segment.value.tobytes())
            self.offset_of[segment.number] = offset
            offsets.append(offset + 16)
        self.file.flush()
        self.engine.publish([s.number for s in segments], offsets)
        return len(segments)

    def close(self):
        self.stop.set()
        self.thread.join()
        self.engine.close()
        self.file.close()


def make_engine(path, dram_bytes, *, io_engine="auto", num_threads=2, max_pending=8):
    engine = _native.Engine(
        tiers=[(1, dram_bytes, 0, None, None, None)],
        num_threads=num_threads,
        incarnation=1,
        epoch=1,
        max_pending_segments=max_pending,
    )
    return engine, FlatLog(engine, path, io_engine)
