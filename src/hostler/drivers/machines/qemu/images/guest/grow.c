/* grow DEVICE MOUNTPOINT: grow the mounted ext4 (blocks of 4 KiB) to the size of its device. */

#include "system.h"

#define BLKGETSIZE64 0x80081272
#define EXT4_IOC_RESIZE_FS 0x40086610

int program(int argc, char **argv, char **environment) {
    unsigned long size;
    if (argc != 3)
        return 1;
    long device = open_file(argv[1], O_RDONLY);
    if (device < 0 || call(IOCTL, device, BLKGETSIZE64, (long)&size) < 0)
        return 1;
    unsigned long blocks = size / 4096;
    long folder = open_file(argv[2], O_RDONLY);
    return folder < 0 || call(IOCTL, folder, EXT4_IOC_RESIZE_FS, (long)&blocks) < 0;
}
