# make demo | test | lint | bench: each sets up .venv by itself. make native-asan | native-tsan: the core's own tests.

PYTHON3 ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
NATIVE := $(wildcard native/include/mtrains/*.h native/src/*.cpp native/src/*.h native/bindings/*)
NATIVE_TESTS := $(wildcard native/tests/*)
JOBS ?= 2

.PHONY: demo test lint bench native-asan native-tsan clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/mtrains demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest

bench: $(VENV)/.bench
	$(BIN)/python -m bench

lint: $(VENV)/.installed
	$(BIN)/ruff check mtrains tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(NATIVE) $(NATIVE_TESTS)
	! grep -rnE '#include *[<"](Python\.h|nanobind/|pybind11/|torch/|ATen/|c10/)' native/include native/src native/tests

# An editable install: Python files are used where they are, the native module is built anew when its sources change.
$(VENV)/.installed: $(VENV)/.tools pyproject.toml CMakeLists.txt $(NATIVE)
	$(PIP) --no-build-isolation --editable '.[test,lint]'
	touch $@

$(VENV)/.tools: constraints.txt
	test -x $(BIN)/python || $(PYTHON3) -m venv $(VENV)
	$(PIP) $(BUILD_TOOLS)
	touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(PIP) --no-build-isolation --editable '.[test,lint,bench]'
	touch $@

native-asan: SANITIZE := address,undefined
native-tsan: SANITIZE := thread
native-asan native-tsan: native-%: $(VENV)/.tools
	$(BIN)/cmake -S . -B build/$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS='-O1 -g1' \
	  -DMTRAINS_PYTHON=OFF -DMTRAINS_TESTS=ON -DMTRAINS_SANITIZE=$(SANITIZE)
	$(BIN)/cmake --build build/$* -j $(JOBS)
	$(BIN)/ctest --test-dir build/$* --output-on-failure -j $(JOBS)

clean:
	rm -rf $(VENV) build
