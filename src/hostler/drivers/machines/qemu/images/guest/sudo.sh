#!/bin/sh
# As root: what is asked for, or a shell. Options of the usual sudo that make sense here; others are refused.
PATH=/bin:/usr/local/bin
export PATH
login=
while :; do
    case $1 in
    -n | -E | -H | -S) shift ;;
    -i | -s) login=1; shift ;;
    -u)
        [ "$2" = root ] || exec su "$2" -s /bin/sh -c 'shift; exec "$@"' sh "$@"
        shift 2
        ;;
    --) shift; break ;;
    -*) echo "sudo: $1: not known here; known are -n -E -H -S -i -s -u USER" >&2; exit 1 ;;
    *) break ;;
    esac
done
HOME=/root USER=root LOGNAME=root
export HOME USER LOGNAME
if [ $# = 0 ]; then exec /bin/sh ${login:+-l}; fi
exec "$@"
