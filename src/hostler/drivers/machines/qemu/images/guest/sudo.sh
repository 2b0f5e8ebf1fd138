#!/bin/sh
# As root, or as somebody else: what is asked for, or a shell. Options that ask for what is so anyway are taken.
PATH=/bin:/usr/local/bin
export PATH
who=root shell=
while :; do
    case $1 in
    -n | -E | -H | -S) shift ;;
    -i | -s) shell=1; shift ;;
    -u) who=$2; shift 2 ;;
    --) shift; break ;;
    -*) echo "sudo: $1: not known here; known are -n -E -H -S -i -s -u USER" >&2; exit 1 ;;
    *) break ;;
    esac
done
if [ -z "$shell" ] && [ $# = 0 ]; then
    echo 'sudo: what to run? Give a command, or -i for a shell' >&2
    exit 1
fi
if [ "$who" != root ]; then
    [ $# = 0 ] && exec su "$who"
    exec su -s /bin/sh -c 'exec "$@"' -- "$who" sh "$@"
fi
HOME=/root USER=root LOGNAME=root
export HOME USER LOGNAME
[ $# = 0 ] && exec /bin/sh -l
exec "$@"
