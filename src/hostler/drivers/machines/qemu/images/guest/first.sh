#!/bin/sh
# The user's own script, at most once in the life of an instance: it is marked before it runs.
[ -e /run/hostler/first ] || exit 0
rm /run/hostler/first
read -r line < /var/lib/hostler/user_data
case $line in
'#!'*) ;;
*) exit 0 ;;
esac
chmod 700 /var/lib/hostler/user_data
cd /root && exec /var/lib/hostler/user_data > /var/log/user-data.log 2>&1
