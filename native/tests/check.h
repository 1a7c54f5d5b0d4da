// Unit tests of the native core without a framework: TEST(name) { CHECK(...); } and one TEST_MAIN() a file.
//
// A failed check prints its place and what was seen; the test goes on, the program exits 1. The first
// argument of the program, if any, selects the tests whose name contains it.
#pragma once

#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace mtrains::check {

struct Test {
  const char* name;
  void (*function)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

inline bool register_test(const char* name, void (*function)()) {
  tests().push_back({name, function});
  return true;
}

inline void fail(const char* file, int line, const std::string& what) {
  ++failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

// Integers of any kind compare by value, bytes and enums print as numbers.
template <typename A, typename B>
bool equal(const A& a, const B& b) {
  constexpr bool integers = std::is_integral_v<A> && std::is_integral_v<B> && !std::is_same_v<A, bool> &&
                            !std::is_same_v<B, bool> && !std::is_same_v<A, char> && !std::is_same_v<B, char>;
  if constexpr (integers) {
    return std::cmp_equal(a, b);
  } else {
    return a == b;
  }
}

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) == 1 && !std::is_same_v<T, bool>) {
    out << static_cast<int>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    out.precision(17);
    out << value;
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << "<" << sizeof(T) << " bytes>";
  }
  return out.str();
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* text_a, const char* text_b, const char* file, int line) {
  if (equal(a, b)) return;
  fail(file, line, std::string(text_a) + " == " + text_b + ": " + show(a) + " != " + show(b));
}

inline int run(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  int num_run = 0;
  for (const Test& test : tests()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    ++num_run;
    const int before = failures();
    try {
      test.function();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("unexpected exception: ") + error.what());
    } catch (...) {
      fail(test.name, 0, "unexpected exception");
    }
    std::printf("%-6s %s\n", failures() == before ? "ok" : "FAILED", test.name);
    std::fflush(stdout);
  }
  if (num_run == 0) {
    std::fprintf(stderr, "no test matches '%s'\n", filter.c_str());
    return 1;
  }
  return failures() == 0 ? 0 : 1;
}

}  // namespace mtrains::check

#define TEST(name)                                                                                          \
  static void test_##name();                                                                                \
  [[maybe_unused]] static const bool registered_##name = mtrains::check::register_test(#name, test_##name); \
  static void test_##name()

#define CHECK(...)                                                                           \
  do {                                                                                       \
    if (!(__VA_ARGS__)) mtrains::check::fail(__FILE__, __LINE__, "CHECK(" #__VA_ARGS__ ")"); \
  } while (false)

#define CHECK_EQ(a, b) mtrains::check::check_equal((a), (b), #a, #b, __FILE__, __LINE__)

#define CHECK_THROWS(expression, Type)                                                                \
  do {                                                                                                \
    bool check_thrown = false;                                                                        \
    try {                                                                                             \
      (void)(expression);                                                                             \
    } catch (const Type&) {                                                                           \
      check_thrown = true;                                                                            \
    }                                                                                                 \
    if (!check_thrown) mtrains::check::fail(__FILE__, __LINE__, #expression " did not throw " #Type); \
  } while (false)

#define TEST_MAIN() \
  int main(int argc, char** argv) { return mtrains::check::run(argc, argv); }
