#!/bin/sh
# The user's own script, at most once in the life of an instance: that it was begun is on the disk before it begins.
script=/var/lib/hostler/user_data
[ -e /run/hostler/first ] || exit 0
rm /run/hostler/first
read -r line < $script
case $line in
'#!'*) ;;
*)
    echo 'hostler: the user-data is no script (it does not begin with #!), it is not run' > /dev/console
    exit 0
    ;;
esac
chmod 700 $script
cd /root || exit 1
exec $script > /var/log/user-data.log 2>&1
