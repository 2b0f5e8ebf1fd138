/* reseed < SEED: mix up to 256 bytes into the kernel's random numbers, and draw new keys from them at once.

   Without it two machines that are restored from one memory would draw the same numbers. */

#include "system.h"

#define RNDADDENTROPY 0x40085203
#define RNDRESEEDCRNG 0x5207

struct rand_pool_info {
    int entropy_count; /* in bits */
    int buf_size;      /* in bytes */
    unsigned char buf[256];
};

int program(int argc, char **argv, char **environment) {
    struct rand_pool_info seed;
    seed.buf_size = call(READ, 0, (long)seed.buf, sizeof seed.buf);
    if (seed.buf_size <= 0)
        return 1;
    seed.entropy_count = 8 * seed.buf_size;
    long random = open_file("/dev/urandom", O_RDWR);
    if (random < 0 || call(IOCTL, random, RNDADDENTROPY, (long)&seed) < 0)
        return 1;
    return call(IOCTL, random, RNDRESEEDCRNG, 0) < 0;
}
