/* A library with system calls of its own: what a call keeps in the kernel it must keep here. */
#include <stdint.h>

struct state {
    uint64_t general[16]; /* by number: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15 */
    uint8_t vector[16][32];
    uint8_t red_zone[128];
};

extern void ccfs_probe(struct state *before, struct state *after);

/* Loads everything from `before`, calls getppid(2), and stores everything in `after`. The jump takes the place of the instruction that
 * sets the number. */
__asm__(".text\n"
        ".globl ccfs_probe\n"
        ".type ccfs_probe, @function\n"
        "ccfs_probe:\n"
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "push %rsi\n" /* after */
        "mov %rdi, %rax\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "vmovdqu 128 + 32 * \\n(%rax), %ymm\\n\n"
        ".endr\n"
        ".set at, 0\n"
        ".rept 16\n"
        "mov 640 + at(%rax), %rcx\n"
        "mov %rcx, -128 + at(%rsp)\n"
        ".set at, at + 8\n"
        ".endr\n"
        "mov 16(%rax), %rdx\n mov 24(%rax), %rbx\n mov 40(%rax), %rbp\n mov 48(%rax), %rsi\n mov 56(%rax), %rdi\n"
        "mov 64(%rax), %r8\n mov 72(%rax), %r9\n mov 80(%rax), %r10\n mov 96(%rax), %r12\n mov 104(%rax), %r13\n"
        "mov 112(%rax), %r14\n mov 120(%rax), %r15\n"
        "mov $110, %eax\n"
        "syscall\n"
        "mov (%rsp), %rcx\n"
        "mov %rax, (%rcx)\n"
        "mov %rdx, 16(%rcx)\n mov %rbx, 24(%rcx)\n mov %rbp, 40(%rcx)\n mov %rsi, 48(%rcx)\n mov %rdi, 56(%rcx)\n"
        "mov %r8, 64(%rcx)\n mov %r9, 72(%rcx)\n mov %r10, 80(%rcx)\n mov %r12, 96(%rcx)\n mov %r13, 104(%rcx)\n"
        "mov %r14, 112(%rcx)\n mov %r15, 120(%rcx)\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "vmovdqu %ymm\\n, 128 + 32 * \\n(%rcx)\n"
        ".endr\n"
        ".set at, 0\n"
        ".rept 16\n"
        "mov -128 + at(%rsp), %rax\n"
        "mov %rax, 640 + at(%rcx)\n"
        ".set at, at + 8\n"
        ".endr\n"
        "vzeroupper\n"
        "pop %rsi\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
        "ret\n");

/* The number of the call that is not kept, or -1: in the order of the structure. */
int ccfs_registers(unsigned seed, long expected)
{
    struct state before, after;
    uint8_t *bytes = (uint8_t *)&before;
    for (unsigned n = 0; n < sizeof before; n++) {
        seed = seed * 1103515245 + 12345;
        bytes[n] = seed >> 16;
    }
    ccfs_probe(&before, &after);
    if ((long)after.general[0] != expected)
        return 0;
    for (int n = 2; n < 16; n++)
        if (n != 4 && n != 11 && before.general[n] != after.general[n])
            return n;
    for (int n = 0; n < 16; n++)
        for (int i = 0; i < 32; i++)
            if (before.vector[n][i] != after.vector[n][i])
                return 100 + n;
    for (int n = 0; n < 128; n++)
        if (before.red_zone[n] != after.red_zone[n])
            return 200 + n;
    return -1;
}
