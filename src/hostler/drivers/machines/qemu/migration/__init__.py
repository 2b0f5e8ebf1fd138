"""Live migration of QEMU machines: the verbs, the outgoing side, the incoming side and the transfer."""
