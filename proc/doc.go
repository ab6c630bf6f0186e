// Package proc answers questions about processes and the machine: who a
// process is, whether it lives, what started it, what it left behind, and how
// busy the host is. It knows nothing of locks.
//
// Whether a process lives is decided in one place, judge, and asked through one
// function, Look. What the kernel shows is read by parsers that any system can
// build; what reads it builds on Linux only.
package proc
