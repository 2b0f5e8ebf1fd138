#!/bin/sh
# Who this machine is. Runs as the first process, in the root that is kept; descriptor 3 is the guest's channel.
PATH=/bin
export PATH
identity=/sys/firmware/qemu_fw_cfg/by_name/opt/hostler
kept=/var/lib/hostler

# The first line of a file of the identity becomes $value; without a fork.
get() {
    value=
    [ -e $identity/$1/raw ] && read -r value < $identity/$1/raw
    [ -n "$value" ]
}

mount -t tmpfs -o mode=755,nosuid run /run
mkdir -p /dev/pts /dev/shm /run/hostler
mount -t devpts -o mode=620,gid=5,ptmxmode=666 pts /dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm
umask 022

get hostname || value=hostler
name=$value
echo "$name" > /proc/sys/kernel/hostname
echo "$name" > /etc/hostname
printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\t%s\n' "$name" > /etc/hosts

get user || value=hostler
user=$value
if [ "$user" != hostler ] && [ ! -d "/home/$user" ]; then
    for file in passwd shadow group; do sed -i "s/^hostler:/$user:/;s,/home/hostler:,/home/$user:," /etc/$file; done
    mv /home/hostler "/home/$user"
    sed -i "s/login -f hostler/login -f $user/" /etc/inittab
fi
home=/home/$user

# What this instance was given before is in $kept. Another instance on the same disk is a clone of it, no reboot.
get instance || value=none
instance=$value
was=
[ -e $kept/instance ] && read -r was < $kept/instance
[ -d $home/.ssh ] || { mkdir -p -m 700 $home/.ssh; chown 1000:1000 $home/.ssh; }
if [ -e $identity/authorized_keys/raw ]; then
    # Keys that were taken away go, new ones come, and those that the user wrote there stay.
    if ! cmp -s $identity/authorized_keys/raw $kept/authorized_keys; then
        given=$(cat $identity/authorized_keys/raw)
        own=
        [ -e $kept/authorized_keys ] && own=$(grep -vxF -f $kept/authorized_keys $home/.ssh/authorized_keys)
        printf '%s\n' "$given" ${own:+"$own"} > $home/.ssh/authorized_keys
        chmod 600 $home/.ssh/authorized_keys
        chown 1000:1000 $home/.ssh/authorized_keys
        printf '%s\n' "$given" > $kept/authorized_keys
    fi
fi

# The host key stays in memory: a snapshot, and so a clone, has none of it.
umask 077
if [ -e $identity/host_key/raw ]; then
    cat $identity/host_key/raw > /run/hostler/openssh
    dropbearconvert openssh dropbear /run/hostler/openssh /run/hostler/host_key 2> /dev/null
    rm /run/hostler/openssh
else
    dropbearkey -t ed25519 -f /run/hostler/host_key > /dev/null 2>&1
fi
umask 022

ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    read -r now < /sys/class/net/eth0/address
    get mac && [ "$value" != "$now" ] && ip link set eth0 address "$value"
    get ip6 && echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
    ip link set eth0 up
    get ip4 && ip addr add "$value" dev eth0
    get gw4 && ip route add default via "$value"
    get ip6 && ip -6 addr add "$value" dev eth0
    get gw6 && ip -6 route add default via "$value" dev eth0
    get dns && for server in $value; do echo "nameserver $server"; done > /etc/resolv.conf
fi

dropbear -s -j -k -K 30 -r /run/hostler/host_key -p 22 -P /run/dropbear.pid 3>&- 2> /dev/console
read -r uptime rest < /proc/uptime
echo "hostler ready $uptime" >&3
if [ "$instance" != "$was" ]; then
    rm -f $kept/user_data
    if [ -e $identity/user_data/raw ]; then
        (umask 077; cat $identity/user_data/raw > $kept/user_data)
        : > /run/hostler/first
    fi
    echo "$instance" > $kept/instance
    sync
fi
exec /bin/init
