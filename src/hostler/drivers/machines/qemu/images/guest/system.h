/* System calls of Linux on x86-64, for programs without a C library. Compiled by tcc when the tiny image is built. */

enum { READ = 0, OPEN = 2, CLOSE = 3, IOCTL = 16, EXECVE = 59, EXIT = 60 };
enum { SETGROUPS = 116, SETRESUID = 117, SETRESGID = 119, FINIT_MODULE = 313 };
enum { O_RDONLY = 0, O_RDWR = 2 };
enum { EEXIST = 17 };

/* Return what the kernel returns: a negative error number if it failed. */
static long call(long number, long first, long second, long third) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
}

static long open_file(const char *path, long flags) { return call(OPEN, (long)path, flags, 0); }

int program(int argc, char **argv, char **environment);

/* The kernel starts a program with argc, the arguments, NULL, the environment and NULL on the stack. */
__asm__(".globl _start\n"
        "_start:\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call start\n");

void start(long *stack) {
    char **argv = (char **)(stack + 1);
    call(EXIT, program(stack[0], argv, argv + stack[0] + 1), 0, 0);
}
