/* load MODULE.ko...: insert kernel modules in this order, in one process; exit with the number of failures. */

#include "system.h"

static int is_loaded(const char *path) {
    long file = open_file(path, O_RDONLY);
    if (file < 0)
        return 0;
    long result = call(FINIT_MODULE, file, (long)"", 0);
    call(CLOSE, file, 0, 0);
    return result >= 0 || result == -EEXIST;
}

int program(int argc, char **argv, char **environment) {
    int failures = 0;
    for (int i = 1; i < argc; i++)
        failures += !is_loaded(argv[i]);
    return failures;
}
