"""Runs calls of a module in forked children: nothing is imported twice, and a child may be killed.

argv[1] is the module's file. Each line of the standard input is {"call", "arguments", "report"}; each line of the
output {"status", "result"}: what waitpid says and what the call returned. A child's stderr goes to report/stderr.
"""

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path


def load(path):
    specification = importlib.util.spec_from_file_location("workload", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def child(module, request):
    report = Path(request["report"])
    stderr = os.open(report / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(stderr, 2)
    os.dup2(stderr, 1)
    try:
        result = module.call(request["call"], request["arguments"])
        (report / "result").write_text(result)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main():
    module = load(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        result = Path(request["report"]) / "result"
        result.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            child(module, request)
        _, status = os.waitpid(pid, 0)
        text = result.read_text() if result.exists() else "null"
        answer = {"status": os.waitstatus_to_exitcode(status), "result": json.loads(text)}
        print(json.dumps(answer), flush=True)


main()
