#!/bin/sh
# Who this machine is. Runs as the first process, in the root that is kept; descriptor 3 is the guest's channel.
# Its disk may be full: what was written before must stay good then, and the machine must still be reached.
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
was=
[ -e /etc/hostname ] && read -r was < /etc/hostname
if [ "$name" != "$was" ]; then
    echo "$name" > /etc/hostname
    printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\t%s\n' "$name" > /etc/hosts
fi

get user || value=hostler
user=$value
home=/home/$user
if [ "$user" != hostler ] && [ ! -d $home ]; then
    for file in passwd shadow group; do sed -i "s/^hostler:/$user:/;s,/home/hostler:,$home:," /etc/$file; done
    sed -i "s/login -f hostler/login -f $user/" /etc/inittab
    mv /home/hostler $home
fi

# Keys that were taken away go, new ones come, and those that the user wrote there stay.
keys=$home/.ssh/authorized_keys
[ -d $home/.ssh ] || { mkdir -p -m 700 $home/.ssh; chown 1000:1000 $home/.ssh; }
if [ -e $identity/authorized_keys/raw ] && ! cmp -s $identity/authorized_keys/raw $kept/authorized_keys; then
    if cat $identity/authorized_keys/raw > $keys.new && {
        [ ! -e $kept/authorized_keys ] || grep -vxF -f $kept/authorized_keys $keys >> $keys.new || [ $? = 1 ]
    }; then
        chmod 600 $keys.new
        chown 1000:1000 $keys.new
        mv $keys.new $keys && cat $identity/authorized_keys/raw > $kept/authorized_keys
    else
        rm -f $keys.new
    fi
fi

# The host key stays in memory: a snapshot, and so a clone, has none of it.
umask 077
key=/run/hostler/host_key
if [ -e $identity/host_key/raw ]; then
    # In a key without a passphrase all stands at fixed places: 64 bytes from the 161st on are the key and its public
    # half, and that is what dropbear's own format has. Its converter takes a tenth of a second where it is emulated.
    text=
    while read -r line; do case $line in -*) ;; *) text=$text$line ;; esac; done < $identity/host_key/raw
    case $text in
    b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZWQyNTUxOQ*)
        {
            printf '\0\0\0\013ssh-ed25519\0\0\0\100'
            echo "${text:212:88}" | base64 -d | tail -c 64
        } > $key
        ;;
    *)
        cat $identity/host_key/raw > $key.openssh
        dropbearconvert openssh dropbear $key.openssh $key > /dev/null 2>&1
        rm $key.openssh
        ;;
    esac
else
    dropbearkey -t ed25519 -f $key > /dev/null 2>&1
fi
umask 022

ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    read -r now < /sys/class/net/eth0/address
    get mac && [ "$value" != "$now" ] && ip link set eth0 address "$value"
    if get ip6; then
        # An address that waits for others to object cannot be used yet, and nobody else has this one. Who was told its
        # routes does not take others from whoever is on the same network.
        echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
        echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_ra
    fi
    ip link set eth0 up
    get ip4 && ip addr add "$value" dev eth0
    get gw4 && ip route add default via "$value"
    get ip6 && ip -6 addr add "$value" dev eth0
    get gw6 && ip -6 route add default via "$value" dev eth0
    servers=
    get dns && for server in $value; do servers="${servers}nameserver $server
"; done
    [ -n "$servers" ] && [ "$servers" != "$(cat /etc/resolv.conf 2> /dev/null)
" ] && printf %s "$servers" > /etc/resolv.conf
fi

dropbear -s -K 30 -r $key -p 22 -P /run/dropbear.pid 3>&- 2> /dev/console
read -r uptime rest < /proc/uptime
echo "hostler ready $uptime" >&3

# Another instance than at the last boot is a new machine or a clone of one: what is done once is done for it too.
get instance || value=none
was=
[ -e $kept/instance ] && read -r was < $kept/instance
if [ "$value" != "$was" ]; then
    if [ -e $identity/user_data/raw ]; then
        (umask 077; cat $identity/user_data/raw > $kept/user_data) && : > /run/hostler/first
    fi
    echo "$value" > $kept/instance
    sync
fi
exec /bin/init
