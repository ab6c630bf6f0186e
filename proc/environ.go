package proc

import "bytes"

// HasEnv says whether a NUL-delimited environment, as /proc/PID/environ shows
// it, has exactly name=value. An empty value matches nothing: programs set variables
// empty to say that they are not there, and everybody would be everybody's.
func HasEnv(environ []byte, name, value string) bool {
	if name == "" || value == "" {
		return false
	}
	for len(environ) > 0 {
		var e []byte
		e, environ, _ = bytes.Cut(environ, []byte{0})
		if len(e) == len(name)+1+len(value) && e[len(name)] == '=' &&
			string(e[:len(name)]) == name && string(e[len(name)+1:]) == value {
			return true
		}
	}
	return false
}
