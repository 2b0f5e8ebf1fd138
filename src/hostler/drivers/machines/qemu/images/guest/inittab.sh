ttyS0::respawn:/bin/login -f hostler
ttyS1::respawn:/lib/hostler/channel
::respawn:/bin/acpid -f -d -l /dev/null
::once:/lib/hostler/first
::shutdown:/bin/sync
::ctrlaltdel:/bin/reboot
