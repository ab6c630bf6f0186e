//go:build linux

package lock

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// What went wrong is said with what the kernel said, where it did.
func TestErrorTexts(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&UnusableError{Path: "/x", Problem: "it is full"}, "lock directory /x is unusable: it is full"},
		{&UnusableError{Path: "/x", Problem: "it is full", Err: errors.New("no space")}, "lock directory /x is unusable: it is full: no space"},
		{unusable("/x", unix.ENOTDIR), "lock directory /x is unusable: it is not a directory (a symbolic link is not followed): not a directory"},
		{unusable("/x", unix.ELOOP), "lock directory /x is unusable: it is not a directory (a symbolic link is not followed): too many levels of symbolic links"},
		{unusable("/x", unix.EACCES), "lock directory /x is unusable: this user may not open it: permission denied"},
		{unusable("/x", unix.EIO), "lock directory /x is unusable: it cannot be opened: input/output error"},
		{unusable("/x", &UnusableError{Path: "/y", Problem: "it is full"}), "lock directory /y is unusable: it is full"},
		{&BusyError{}, "the host is busy"},
		{&BusyError{Reason: "its job was refused"}, "the host is busy: its job was refused"},
		{&TakenOverError{}, "the lock was gone before it was released: somebody removed it, and the host was not ours to the end"},
		{&TakenOverError{Kind: TTLExpired}, "the lock was taken over before it was released (ttl_expired): the host was not ours to the end"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// Who had the host is named before who only was in front.
func TestInTheWay(t *testing.T) {
	holder, before := &Ticket{Seq: 1}, &Ticket{Seq: 2}
	if got := (&TimeoutError{Blocker: before, Holder: holder}).InTheWay(); got != holder {
		t.Errorf("number %d", got.Seq)
	}
	if got := (&TimeoutError{Blocker: before}).InTheWay(); got != before {
		t.Errorf("%+v", got)
	}
}
