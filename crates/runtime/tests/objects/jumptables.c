// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Indirect jumps as LLVM 22 compiles `switch` to them: tables in a section `.jumptables`, an entry for each value, the
 * place of an instruction as a byte of its section. In assembly, which older compilers know but for `gotox`. A packet
 * is the value, 8 bytes.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
/* gotox r4 */
#define GOTOX_R4 ".8byte 0x000000000000040d\n"
#define FUNCTION(name) ".type " name ",@function\n" name ":\n"
#define SIZE(name) ".size " name ", .-" name "\n"
#define TABLE(name) ".globl " name "\n.type " name ",@object\n" name ":\n"
/* The value of a packet into r3, or on at `out` of the function. */
#define ASKED(out)                                                                                                     \
	"r0 = 98\n r2 = *(u32 *)(r1 + 0)\n r3 = *(u32 *)(r1 + 4)\n r4 = r2\n r4 += 8\n"                                \
	"if r4 > r3 goto " out "\n r3 = *(u64 *)(r2 + 0)\n"
/* By the table, whose length is a constant, or on at `other`. */
#define SWITCH(table, last, other)                                                                                     \
	"if r3 > " last " goto " other "\n r3 <<= 3\n r4 = " table " ll\n r4 += r3\n r4 = *(u64 *)(r4 + 0)\n" GOTOX_R4

asm(".section xdp,\"ax\",@progbits\n"
    /* The first function of the section is another one. */
    ".globl first\n" FUNCTION("first") "r0 = 7\n exit\n" SIZE("first")
    ".globl chooses\n" FUNCTION("chooses")
    ASKED(".Lout")
    SWITCH("BPF.JT.1.0", "3", ".Lother")
    ".Lone:\n r0 = 1\n goto .Lout\n"
    ".Ltwo:\n r0 = 2\n goto .Lout\n"
    ".Lthree:\n r0 = 3\n goto .Lout\n"
    ".Lother:\n r0 = 99\n"
    ".Lout:\n exit\n" SIZE("chooses")
    /* Two tables, of which the second is of values from 4 on, and one function that others call, which has one. */
    ".globl calls\n" FUNCTION("calls")
    "r6 = 0\n"
    ASKED(".Lend")
    "r6 = r3\n"
    SWITCH("BPF.JT.2.0", "2", ".Lmore")
    ".Lfive:\n r0 = 5\n goto .Lend\n"
    ".Lsix:\n r0 = 6\n goto .Lend\n"
    ".Lmore:\n r0 = 97\n r3 = r6\n r3 += -4\n"
    SWITCH("BPF.JT.2.1", "1", ".Lend")
    ".Lasks:\n r1 = r6\n call helps\n"
    ".Lend:\n exit\n" SIZE("calls")

    ".section .text,\"ax\",@progbits\n" FUNCTION("before") "r0 = 0\n exit\n" SIZE("before") FUNCTION("helps")
    "r3 = r1\n r3 &= 3\n r0 = 96\n"
    SWITCH("BPF.JT.4.0", "3", ".Ldone")
    ".Lten:\n r0 = 10\n goto .Ldone\n"
    ".Leleven:\n r0 = 11\n"
    ".Ldone:\n exit\n" SIZE("helps")

    ".section xdp,\"ax\",@progbits\n"
    ".globl helped\n" FUNCTION("helped") ASKED(".Lhelped") "r1 = r3\n call helps\n r0 += 100\n .Lhelped:\n exit\n"
    SIZE("helped")

    ".section .jumptables,\"\",@progbits\n" TABLE("BPF.JT.1.0")
    ".quad .Lone-first\n .quad .Lthree-first\n .quad .Ltwo-first\n .quad .Lthree-first\n" SIZE("BPF.JT.1.0")
    TABLE("BPF.JT.2.0") ".quad .Lfive-first\n .quad .Lsix-first\n .quad .Lfive-first\n" SIZE("BPF.JT.2.0")
    TABLE("BPF.JT.2.1") ".quad .Lasks-first\n .quad .Lend-first\n" SIZE("BPF.JT.2.1")
    /* With a relocation for each entry. */
    TABLE("BPF.JT.4.0") ".quad .Lten\n .quad .Leleven\n .quad .Ldone\n .quad .Lten\n" SIZE("BPF.JT.4.0"));

char LICENSE[] __attribute__((section("license"), used)) = "GPL";
