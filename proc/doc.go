// Package proc answers questions about processes and the machine: who a
// process is, whether it lives, what started it, what it left behind, and how
// busy the host is. It knows nothing of locks.
package proc
