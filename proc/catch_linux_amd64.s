//go:build !ossignal

#include "textflag.h"

DATA one<>+0(SB)/8, $1
GLOBL one<>(SB), RODATA|NOPTR, $8

// The handler: the kernel calls it with the signal's number in DI, every signal
// blocked, on the thread's signal stack. It enters the number in caught, adds 1 to the
// eventfd and returns; rt_sigreturn puts back every register, so none is saved.
TEXT handler<>(SB), NOSPLIT|NOFRAME, $0
	MOVL DI, CX
	MOVL $1, AX
	SHLL CX, AX
	LOCK
	ORL  AX, ·caught(SB)
	MOVL ·caughtWake(SB), DI
	LEAQ one<>(SB), SI
	MOVL $8, DX
	MOVL $1, AX             // write
	SYSCALL
	RET

// What the handler returns to. The kernel has none of its own (SA_RESTORER).
TEXT restorer<>(SB), NOSPLIT|NOFRAME, $0
	MOVL $15, AX // rt_sigreturn
	SYSCALL
	INT  $3

DATA ·handlerPC+0(SB)/8, $handler<>(SB)
GLOBL ·handlerPC(SB), NOPTR, $8

DATA ·restorerPC+0(SB)/8, $restorer<>(SB)
GLOBL ·restorerPC(SB), NOPTR, $8
