"""Children that may be killed or have their calls fail, forked by a process that has imported everything."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class ForkServer:
    """The process of fork_server.py with the calls of fault_workload.py."""

    def __init__(self, preload=None, **variables):
        """preload: a library for LD_PRELOAD; variables: of its environment."""
        environment = {**os.environ, **variables}
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        command = [sys.executable, str(HERE / "fork_server.py"), str(HERE / "fault_workload.py")]
        self._report = tempfile.TemporaryDirectory(prefix="mtrains-test-")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def call(self, name, folder, **arguments):
        """Call it in a child; return (exit status, negative for a signal, what the call returned or None)."""
        arguments["folder"] = str(folder)
        request = {"call": name, "arguments": arguments, "report": self._report.name}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the fork server died"
        answer = json.loads(line)
        return answer["status"], answer["result"]

    def result(self, name, folder, **arguments):
        """Return what a call returns that is not to fail."""
        status, result = self.call(name, folder, **arguments)
        assert status == 0, (status, self.stderr())
        return result

    def stderr(self):
        """Return what the last child printed."""
        return (Path(self._report.name) / "stderr").read_text()

    @staticmethod
    def possible_newest(lines):
        """Return the tags that the newest checkpoint may have after these lines of a run's log; "" is none."""
        possible = {""}
        for line in lines:
            kind, tag = line.split()
            possible = possible | {tag} if kind == "begin" else {tag}
        return sorted(possible)

    def close(self):
        self._process.kill()  # its input may not end: children of other tests have inherited the pipe
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._report.cleanup()


@pytest.fixture(scope="session")
def compile_shim(tmp_path_factory):
    """Compile a C file of this folder to a library for LD_PRELOAD."""

    def compile_one(name):
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("faults are made by a C library, and there is no C compiler here")
        library = tmp_path_factory.mktemp("shim") / f"{name}.so"
        source = HERE / f"{name}.c"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        return library

    return compile_one


@pytest.fixture
def memory_folder(tmp_path):
    """A folder in memory where there is one: syncs of a copy that a test made take time and prove nothing."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    folder = Path(tempfile.mkdtemp(prefix="mtrains-test-", dir=parent))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def fork_server():
    """A server without a library."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def reference(fork_server, tmp_path_factory):
    """What the undisturbed run returns."""
    return fork_server.result("undisturbed", tmp_path_factory.mktemp("undisturbed"))
