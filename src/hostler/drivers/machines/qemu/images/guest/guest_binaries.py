"""Tiny programs for system calls that busybox's shell cannot make.

Each is a listing: the bytes of an instruction, then its meaning. The right column is for readers.
"""

from __future__ import annotations

from hostler.drivers.machines.qemu.images import elf


def assembled(listing: str) -> bytes:
    """Assemble a listing: the part left of `;` is hexadecimal, or text in quotes, to which a NUL is added."""
    code = bytearray()
    for line in listing.splitlines():
        left = line.partition(";")[0].strip()
        if left.startswith('"'):
            code += left.strip('"').encode() + b"\0"
        else:
            code += bytes.fromhex(left)
    return elf.program(bytes(code))


RESEED = assembled("""
    48 81 ec 10 01 00 00    ; sub rsp, 272          a struct rand_pool_info with 256 bytes
    31 ff                   ; xor edi, edi          standard input
    48 8d 74 24 08          ; lea rsi, [rsp+8]      .buf
    ba 00 01 00 00          ; mov edx, 256
    31 c0                   ; xor eax, eax          read
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    7e 49                   ; jle fail              nothing came
    89 44 24 04             ; mov [rsp+4], eax      .buf_size
    c1 e0 03                ; shl eax, 3
    89 04 24                ; mov [rsp], eax        .entropy_count, in bits
    48 8d 3d 3d 00 00 00    ; lea rdi, [path]
    6a 02 5e                ; mov esi, 2            O_RDWR
    6a 02 58                ; mov eax, 2            open
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    78 2c                   ; js fail
    89 c3                   ; mov ebx, eax
    89 df                   ; mov edi, ebx
    be 03 52 08 40          ; mov esi, RNDADDENTROPY
    48 89 e2                ; mov rdx, rsp
    6a 10 58                ; mov eax, 16           ioctl
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    78 17                   ; js fail
    89 df                   ; mov edi, ebx
    be 07 52 00 00          ; mov esi, RNDRESEEDCRNG
    6a 10 58                ; mov eax, 16           ioctl
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    78 07                   ; js fail
    31 ff                   ; xor edi, edi
    6a 3c 58                ; exit: mov eax, 60
    0f 05                   ; syscall
    6a 01 5f                ; fail: mov edi, 1
    eb f6                   ; jmp exit
    "/dev/urandom"          ; path
""")
"""`reseed < SEED`: mixes these bytes into the kernel's random numbers.

Without it two machines restored from one memory would draw the same numbers.
"""

LOAD = assembled("""
    48 8d 5c 24 10          ; lea rbx, [rsp+16]     &argv[1]
    31 ed                   ; xor ebp, ebp          how many failed
    48 8b 3b                ; next: mov rdi, [rbx]
    48 85 ff                ; test rdi, rdi
    74 3e                   ; jz done
    31 f6                   ; xor esi, esi          O_RDONLY
    6a 02 58                ; mov eax, 2            open
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    78 2b                   ; js failed
    41 89 c4                ; mov r12d, eax
    89 c7                   ; mov edi, eax
    48 8d 35 2e 00 00 00    ; lea rsi, [none]       no parameters
    31 d2                   ; xor edx, edx
    b8 39 01 00 00          ; mov eax, 313          finit_module
    0f 05                   ; syscall
    41 89 c5                ; mov r13d, eax
    44 89 e7                ; mov edi, r12d
    6a 03 58                ; mov eax, 3            close
    0f 05                   ; syscall
    45 85 ed                ; test r13d, r13d
    79 08                   ; jns went
    41 83 fd ef             ; cmp r13d, -17         EEXIST: it is there
    74 02                   ; je went
    ff c5                   ; failed: inc ebp
    48 83 c3 08             ; went: add rbx, 8
    eb ba                   ; jmp next
    89 ef                   ; done: mov edi, ebp
    6a 3c 58                ; mov eax, 60           exit
    0f 05                   ; syscall
    ""                      ; none
""")
"""`load MODULE.ko…`: inserts modules in this order in one process; exits with the number of failures."""

GROW = assembled("""
    48 8b 7c 24 10          ; mov rdi, [rsp+16]     argv[1]
    31 f6                   ; xor esi, esi          O_RDONLY
    6a 02 58                ; mov eax, 2            open
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    78 44                   ; js fail
    89 c7                   ; mov edi, eax
    be 72 12 08 80          ; mov esi, BLKGETSIZE64
    6a 00                   ; push 0
    48 89 e2                ; mov rdx, rsp
    6a 10 58                ; mov eax, 16           ioctl
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    78 2f                   ; js fail
    48 c1 2c 24 0c          ; shr qword [rsp], 12   bytes to blocks of 4 KiB
    48 8b 7c 24 20          ; mov rdi, [rsp+32]     argv[2]
    31 f6                   ; xor esi, esi          O_RDONLY
    6a 02 58                ; mov eax, 2            open
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    78 1a                   ; js fail
    89 c7                   ; mov edi, eax
    be 10 66 08 40          ; mov esi, EXT4_IOC_RESIZE_FS
    48 89 e2                ; mov rdx, rsp
    6a 10 58                ; mov eax, 16           ioctl
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    78 07                   ; js fail
    31 ff                   ; xor edi, edi
    6a 3c 58                ; exit: mov eax, 60
    0f 05                   ; syscall
    6a 01 5f                ; fail: mov edi, 1
    eb f6                   ; jmp exit
""")
"""`grow DEVICE MOUNTPOINT`: grows the mounted ext4 (blocks of 4 KiB) to the size of its device, by the kernel."""

SUDO = assembled("""
    4c 8b 24 24             ; mov r12, [rsp]        argc
    4d 85 e4                ; test r12, r12
    74 4f                   ; jz fail               without argv[0] there is no room for ours
    31 ff                   ; xor edi, edi
    31 f6                   ; xor esi, esi
    6a 74 58                ; mov eax, 116          setgroups(0, NULL)
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    75 42                   ; jnz fail
    31 ff                   ; xor edi, edi
    31 f6                   ; xor esi, esi
    31 d2                   ; xor edx, edx
    6a 77 58                ; mov eax, 119          setresgid(0, 0, 0)
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    75 33                   ; jnz fail
    31 ff                   ; xor edi, edi
    31 f6                   ; xor esi, esi
    31 d2                   ; xor edx, edx
    6a 75 58                ; mov eax, 117          setresuid(0, 0, 0)
    0f 05                   ; syscall
    85 c0                   ; test eax, eax
    75 24                   ; jnz fail
    4a 8d 54 e4 10          ; lea rdx, [rsp+r12*8+16]   the environment
    48 8d 3d 20 00 00 00    ; lea rdi, [shell]
    48 89 3c 24             ; mov [rsp], rdi        the place of argc becomes argv[0],
    48 8d 05 1d 00 00 00    ; lea rax, [script]
    48 89 44 24 08          ; mov [rsp+8], rax      the old argv[0] becomes argv[1]
    48 89 e6                ; mov rsi, rsp
    6a 3b 58                ; mov eax, 59           execve
    0f 05                   ; syscall
    6a 01 5f                ; fail: mov edi, 1
    6a 3c 58                ; mov eax, 60           exit
    0f 05                   ; syscall
    "/bin/sh"               ; shell
    "/lib/hostler/sudo"     ; script
""")
"""`sudo …`: runs the script `sudo` as root. Set-uid, and executable only by the group of the machine's user."""
