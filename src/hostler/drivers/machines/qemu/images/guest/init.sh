#!/bin/sh
# The kernel's first program. Up to `go` nothing here may depend on who this machine is: a template is saved there, and
# every machine that is restored from it goes on from that line, with its own disk and its own identity.
PATH=/bin
export PATH
mount -t devtmpfs dev /dev
mount -t proc proc /proc
read -r arguments < /proc/cmdline
case " $arguments " in
*" hostler.probe "*)
    echo 'hostler booted' > /dev/console
    poweroff -f
    ;;
esac
mount -t sysfs sys /sys

fail() {
    echo "hostler: $1" > /dev/console
    echo "hostler failed $1" >&3
    sync
    poweroff -f
}

# One process holds the channel open from here on, so that nothing sent to it is lost between two that read.
exec 3<> /dev/ttyS1
stty -F /dev/ttyS1 raw -echo 2> /dev/null
load /lib/modules/early/* || fail 'a module of the kernel cannot be loaded'
identity=/sys/firmware/qemu_fw_cfg/by_name/opt/hostler
case " $arguments " in
*" hostler.template "*)
    # One that was restored from a template, and boots again, has an identity and need not wait for one.
    load /lib/modules/identity/*qemu_fw_cfg.ko
    if [ ! -d $identity ]; then
        rmmod qemu_fw_cfg
        echo 'hostler template' >&3
        while read -r word now <&3; do [ "$word" = go ] && break; done
        date -s "@$now" > /dev/null 2>&1
    fi
    ;;
esac
# Only now: what these find (the firmware's files, the size of the disk) is this machine's own.
load /lib/modules/identity/* || fail 'a module of the kernel cannot be loaded'
[ -e $identity/seed/raw ] && reseed < $identity/seed/raw

if [ -e /dev/vda ]; then
    mount -t ext4 -o noatime,errors=remount-ro,noinit_itable /dev/vda /disk ||
        fail 'the disk cannot be mounted: there is no ext4 on it, or a damaged one'
    grow /dev/vda /disk 2> /dev/null
else
    echo 'hostler: there is no disk, nothing will be kept' > /dev/console
    mount -t tmpfs disk /disk
fi
[ -d /disk/work ] || mkdir -p /disk/root /disk/work
mount -t overlay -o lowerdir=/system,upperdir=/disk/root,workdir=/disk/work root /root ||
    fail 'the root cannot be mounted over the disk'
mount --move /dev /root/dev
mount --move /proc /root/proc
mount --move /sys /root/sys
mount --move /disk /root/disk
exec chroot /root /lib/hostler/start
