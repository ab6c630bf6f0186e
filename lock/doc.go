// Package lock is the queue for a host: numbered tickets in a shared
// directory, of which those with nothing live in their way hold the host.
// It knows nothing of CI.
package lock
