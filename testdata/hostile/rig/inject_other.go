//go:build linux && !amd64

package rig

import "syscall"

// CanInject says whether calls can be made to fail on this machine.
const CanInject = false

func skipCall(int) error                 { return syscall.ENOSYS }
func setResult(int, syscall.Errno) error { return syscall.ENOSYS }
