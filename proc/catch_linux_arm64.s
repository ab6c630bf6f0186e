//go:build !ossignal

#include "textflag.h"

DATA one<>+0(SB)/8, $1
GLOBL one<>(SB), RODATA|NOPTR, $8

// The handler: the kernel calls it with the signal's number in R0, every signal
// blocked, on the thread's signal stack. It enters the number in caught, adds 1 to the
// eventfd and returns, to the kernel's own rt_sigreturn, which puts back every register.
TEXT handler<>(SB), NOSPLIT|NOFRAME, $0
	MOVD $1, R3
	LSL  R0, R3, R3
	MOVD $·caught(SB), R4

again:
	LDAXRW (R4), R5
	ORRW   R3, R5, R5
	STLXRW R5, (R4), R6
	CBNZW  R6, again
	MOVD   $·caughtWake(SB), R7
	MOVW   (R7), R0
	MOVD   $one<>(SB), R1
	MOVD   $8, R2
	MOVD   $64, R8              // write
	SVC
	RET

DATA ·handlerPC+0(SB)/8, $handler<>(SB)
GLOBL ·handlerPC(SB), NOPTR, $8
