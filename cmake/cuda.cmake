# CUDA plugins, built twice: by nvcc for GPUs, and by the C++ compiler against tests/cuda/double for CPUs.
#   MOE_CUDA            AUTO: where a toolkit is found; ON: or fail; OFF
#   MOE_CUDA_FOUND      afterwards: is it built
#   MOE_CUDA_ARCHITECTURES  of the GPUs
set(MOE_CUDA AUTO CACHE STRING "CUDA plugins: AUTO, ON or OFF")
set(MOE_CUDA_ARCHITECTURES 90a 100a CACHE STRING "GPU architectures of CUDA plugins")
set(MOE_CUDA_FOUND OFF)
if(NOT MOE_CUDA STREQUAL OFF)
  find_program(MOE_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  if(MOE_NVCC AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    get_filename_component(CUDA_ROOT ${MOE_NVCC} DIRECTORY)
    get_filename_component(CUDA_ROOT ${CUDA_ROOT} DIRECTORY)
    find_path(CUDA_INCLUDE cuda_runtime_api.h HINTS ${CUDA_ROOT}/include ${CUDA_ROOT}/targets/x86_64-linux/include)
    set(CUDA_LIB_HINTS ${CUDA_ROOT}/lib64 ${CUDA_ROOT}/lib ${CUDA_ROOT}/targets/x86_64-linux/lib)
    foreach(lib cudart cublasLt nccl)
      find_library(CUDA_${lib} ${lib} HINTS ${CUDA_LIB_HINTS})
    endforeach()
    if(CUDA_INCLUDE AND CUDA_cudart AND CUDA_cublasLt)
      set(MOE_CUDA_FOUND ON)
    endif()
  endif()
  if(MOE_CUDA_FOUND)
    enable_language(CXX)
    set(CMAKE_CXX_STANDARD 17)
    message(STATUS "CUDA: ${MOE_NVCC}, for ${MOE_CUDA_ARCHITECTURES}")
  elseif(MOE_CUDA STREQUAL ON)
    message(FATAL_ERROR "MOE_CUDA is ON, but no CUDA toolkit with cuBLASLt is found (nvcc on PATH, or CUDA_HOME)")
  else()
    message(STATUS "CUDA: no toolkit found (nvcc on PATH, or CUDA_HOME); device cuda is not built")
  endif()
endif()

# nvcc is called by rules of our own: only for GPU code, so that the language needs no GPU and no link step to be tried.
set(NVCC_FLAGS -std=c++17 -O3 --expt-relaxed-constexpr -lineinfo -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra
  -Werror=all-warnings -Xptxas=-warn-spills,-Werror -diag-suppress=177)
foreach(arch ${MOE_CUDA_ARCHITECTURES})
  list(APPEND NVCC_FLAGS -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()

# moe_cuda_plugin(<kind> <file> SOURCES <.c and .cu> [INCLUDES ...] [LIBS ...] [CUDA_LIBS cublasLt nccl]
#                 [NVCC <flags>]):
# build/plugins/<kind>/<file>.so and build/double/plugins/<kind>/<file>.so. Targets plugin_<kind>_<file> and
# plugin_double_<kind>_<file>.
function(moe_cuda_plugin kind file)
  cmake_parse_arguments(ARG "" "" "SOURCES;INCLUDES;LIBS;CUDA_LIBS;NVCC" ${ARGN})
  set(objects)
  set(doubles)
  set(plain)
  set(includes ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/plugins/cuda ${PROJECT_SOURCE_DIR}/abi ${ARG_INCLUDES})
  list(TRANSFORM includes PREPEND -I OUTPUT_VARIABLE include_flags)
  foreach(source ${ARG_SOURCES})
    if(NOT source MATCHES "\\.cu$")
      list(APPEND plain ${source})
      continue()
    endif()
    get_filename_component(path ${source} ABSOLUTE)
    string(REPLACE "/" "_" flat ${source})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${file}.dir/${flat}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${MOE_NVCC} ${NVCC_FLAGS} ${ARG_NVCC} ${include_flags} -MD -MF ${object}.d -c ${path} -o ${object}
      DEPENDS ${path} DEPFILE ${object}.d COMMENT "nvcc ${source}" VERBATIM)
    list(APPEND objects ${object})
    set(twin ${CMAKE_CURRENT_BINARY_DIR}/${file}.dir/${flat}.cpp)
    file(GENERATE OUTPUT ${twin} CONTENT "#include \"${path}\"\n")
    list(APPEND doubles ${twin})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${file}.dir)

  moe_plugin(${kind} ${file} HAS_DOUBLE SOURCES ${plain} ${objects} LIBS ${ARG_LIBS})
  set(libs ${CUDA_cudart})
  foreach(lib ${ARG_CUDA_LIBS})
    list(APPEND libs ${CUDA_${lib}})
  endforeach()
  target_link_libraries(plugin_${kind}_${file} PRIVATE ${libs})
  moe_double_plugin(${kind} ${file} SOURCES ${plain} ${doubles} LIBS ${ARG_LIBS})
  foreach(target plugin_${kind}_${file} plugin_double_${kind}_${file})
    target_include_directories(${target} PRIVATE ${includes})
    target_include_directories(${target} SYSTEM PRIVATE ${CUDA_INCLUDE})
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX CXX_VISIBILITY_PRESET hidden)
  endforeach()
endfunction()

# The same sources for the CPU.
function(moe_double_plugin kind file)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  set(target plugin_double_${kind}_${file})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${MOE_WERROR}>:-Werror> -Wno-unknown-pragmas
    -fno-strict-aliasing)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
  target_link_libraries(${target} PRIVATE abi ${ARG_LIBS} cuda_double)
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${file} C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/double/plugins/${kind})
  target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map)
endfunction()
