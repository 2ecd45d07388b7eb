# moe_mpi_test(<name> COMMAND...): a CTest entry that starts processes by mpirun, or, without MPI, says that it is skipped.
# Not under the sanitizers: Open MPI is not built with them, so ThreadSanitizer takes what it hands from thread to thread
# for races, and its own leaks at exit drown ours.
find_program(MOE_MPIRUN mpirun)
function(moe_mpi_test name)
  if(NOT TARGET plugin_comm_mpi OR NOT MOE_MPIRUN)
    add_test(NAME ${name} COMMAND sh -c "echo 'skipped: no MPI here (libopenmpi-dev, openmpi-bin)'; exit 77")
  elseif(MOE_SANITIZE)
    add_test(NAME ${name} COMMAND sh -c "echo 'skipped: Open MPI is not built for -fsanitize=${MOE_SANITIZE}'; exit 77")
  else()
    add_test(NAME ${name} COMMAND ${ARGN})
  endif()
  # as root too, and without a wait for a terminal
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 PROCESSORS 2
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endfunction()
