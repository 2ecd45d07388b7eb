# The three things that folders declare: code of ours with our warnings, a plugin, a test.

set(MOE_WARNINGS -Wall -Wextra -Wshadow -Wconversion
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>)
if(MOE_WERROR)
  list(APPEND MOE_WARNINGS -Werror)
endif()
if(MOE_SANITIZE)
  add_compile_options(-fsanitize=${MOE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${MOE_SANITIZE})
  if(CMAKE_C_COMPILER_ID STREQUAL "Clang")
    add_compile_options(-Wno-pass-failed) # instrumented loops do not become vectors, and need not
  endif()
endif()
if(MOE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

function(moe_own target)
  target_compile_options(${target} PRIVATE ${MOE_WARNINGS})
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
endfunction()

# moe_plugin(<kind> <id> SOURCES ... [LIBS ...]): build/plugins/<kind>/<id>.so, one export, nothing unresolved.
# Target name: plugin_<kind>_<id>. With CUDA build/double/plugins has it too, by a link, unless it HAS_DOUBLE of its own.
function(moe_plugin kind id)
  cmake_parse_arguments(ARG "HAS_DOUBLE" "" "SOURCES;LIBS" ${ARGN})
  set(target plugin_${kind}_${id})
  add_library(${target} MODULE ${ARG_SOURCES})
  moe_own(${target})
  target_link_libraries(${target} PRIVATE abi ${ARG_LIBS})
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${id} C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins/${kind})
  target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map -Wl,-z,now)
  if(NOT MOE_SANITIZE) # sanitizer runtimes are resolved by the program
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  install(TARGETS ${target} LIBRARY DESTINATION lib/moehost/plugins/${kind})
  if(MOE_CUDA_FOUND AND NOT ARG_HAS_DOUBLE)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/double/plugins/${kind})
    file(CREATE_LINK ../../../plugins/${kind}/${id}.so ${CMAKE_BINARY_DIR}/double/plugins/${kind}/${id}.so SYMBOLIC)
  endif()
endfunction()

# moe_test(<name> SOURCES ... [LIBS ...] [TIMEOUT s]): one Check program, one CTest entry of that name.
function(moe_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  moe_own(test_${name})
  target_link_libraries(test_${name} PRIVATE abi PkgConfig::CHECK Threads::Threads m ${CMAKE_DL_LIBS} ${ARG_LIBS})
  target_include_directories(test_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE MOE_BUILD_DIR="${CMAKE_BINARY_DIR}"
    MOE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND test_${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "CK_DEFAULT_TIMEOUT=${ARG_TIMEOUT}")
endfunction()

# moe_test_on(<device> <plugins> <name> <targets...>): the program of moe_test(<name>) once more, on another device whose
# plugins lie in that folder and are built by these targets. CTest entry <device>_<name>, without the "cpu_" of <name>.
function(moe_test_on device plugins name)
  string(REPLACE "cpu_" "" entry ${device}_${name})
  add_test(NAME ${entry} COMMAND test_${name})
  add_dependencies(test_${name} ${ARGN})
  set_tests_properties(${entry} PROPERTIES TIMEOUT 600 PROCESSORS 2 # streams are threads
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=600;MOE_TEST_DEVICE=${device};MOE_TEST_PLUGINS=${plugins};MOE_TEST_RANKS=8")
endfunction()

# moe_test_on_cuda(<name>... [NEEDS <kind>_<file>...] [WITHOUT <sanitizer>...]): on device "cuda" through its double on
# the CPU, where that is built, and where these plugins have a double too. Its memory is the process's, so ranks may be
# threads. WITHOUT: too slow under these ("address", "thread"), which see the same kernels by smaller tests.
function(moe_test_on_cuda)
  cmake_parse_arguments(ARG "" "" "NEEDS;WITHOUT" ${ARGN})
  foreach(sanitizer ${ARG_WITHOUT})
    if(MOE_SANITIZE MATCHES ${sanitizer})
      return()
    endif()
  endforeach()
  set(targets)
  foreach(plugin device_cuda ${ARG_NEEDS})
    if(NOT TARGET plugin_double_${plugin})
      return()
    endif()
    list(APPEND targets plugin_double_${plugin})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY MOE_CUDA_TESTS ${ARG_UNPARSED_ARGUMENTS}) # for tests/gpu
  foreach(name ${ARG_UNPARSED_ARGUMENTS})
    moe_test_on(cuda ${CMAKE_BINARY_DIR}/double/plugins ${name} ${targets})
  endforeach()
endfunction()

# moe_test_part_on_cuda(<name> <test case> UNDER <sanitizer>... [NEEDS ...]): of what moe_test_on_cuda leaves out under
# these, being too slow, one of its cases (Check's CK_RUN_CASE) alone. CTest entry cuda_<name>_part.
function(moe_test_part_on_cuda name case)
  cmake_parse_arguments(ARG "" "" "NEEDS;UNDER" ${ARGN})
  set(wanted OFF)
  foreach(sanitizer ${ARG_UNDER})
    if(MOE_SANITIZE MATCHES ${sanitizer})
      set(wanted ON)
    endif()
  endforeach()
  foreach(plugin device_cuda ${ARG_NEEDS})
    if(NOT TARGET plugin_double_${plugin})
      set(wanted OFF)
    else()
      add_dependencies(test_${name} plugin_double_${plugin})
    endif()
  endforeach()
  if(wanted)
    add_test(NAME cuda_${name}_part COMMAND test_${name})
    set_tests_properties(cuda_${name}_part PROPERTIES TIMEOUT 600 PROCESSORS 2
      ENVIRONMENT "CK_RUN_CASE=${case};CK_DEFAULT_TIMEOUT=600;MOE_TEST_DEVICE=cuda;MOE_TEST_RANKS=8")
    set_property(TEST cuda_${name}_part APPEND PROPERTY
      ENVIRONMENT "MOE_TEST_PLUGINS=${CMAKE_BINARY_DIR}/double/plugins")
  endif()
endfunction()

# moe_test_on_late(<name>...): on the tests' own asynchronous device (tests/plugins/device/late).
set(MOE_LATE_PLUGINS ${CMAKE_BINARY_DIR}/tests/plugins/device/late/plugins)
function(moe_test_on_late)
  foreach(name ${ARGN})
    moe_test_on(late ${MOE_LATE_PLUGINS} ${name} test_device_late)
  endforeach()
endfunction()
