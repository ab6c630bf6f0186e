package lock

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what a record may carry, in bytes.
const (
	MaxOwner = 200
	MaxText  = 1024
)

// cutMark ends a text that was cut.
const cutMark = "…[cut]"

// Flatten makes one line of somebody's free text: control and format
// characters (which include line breaks, escape sequences' ESC and the bidi
// overrides) and invalid UTF-8 become spaces or U+FFFD, and what is longer
// than max bytes is cut with a mark.
func Flatten(s string, max int) string {
	var b strings.Builder
	for _, r := range strings.TrimSpace(s) {
		switch {
		case r == utf8.RuneError:
			b.WriteRune(utf8.RuneError)
		case unicode.IsControl(r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r), unicode.Is(unicode.Cf, r):
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
		if b.Len() > max {
			break
		}
	}
	out := b.String()
	if len(out) <= max {
		return strings.TrimSpace(out)
	}
	cut := max - len(cutMark)
	if cut < 0 {
		cut = 0
	}
	for !utf8.RuneStart(out[cut]) {
		cut--
	}
	return out[:cut] + cutMark
}

// ValidOwner reports whether s can be an owner: letters, digits and "_ . -
// / : #", at most MaxOwner bytes. Those characters can form neither a field
// nor a shell word, so an owner may stand in the one-line form.
func ValidOwner(s string) bool {
	if s == "" || len(s) > MaxOwner || strings.Contains(s, "::") {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !ownerByte(s[i]) {
			return false
		}
	}
	return true
}

// SafeOwner turns any text into an owner: what an owner may not contain
// becomes "_".
func SafeOwner(s string) string {
	b := []byte(s)
	if len(b) > MaxOwner {
		b = b[:MaxOwner]
	}
	for i, c := range b {
		if !ownerByte(c) || c == ':' && i > 0 && b[i-1] == ':' {
			b[i] = '_'
		}
	}
	if len(b) == 0 {
		return "unknown"
	}
	return string(b)
}

func ownerByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return strings.IndexByte("_.-/:#", c) >= 0
}

// token keeps a machine-made value (a gate, a survivors count) only if it is
// made of the characters such values are made of: a peer wrote it.
func token(s string) string {
	if len(s) > 64 {
		return ""
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; !ownerByte(c) && strings.IndexByte("<=>", c) < 0 || c == '#' {
			return ""
		}
	}
	if strings.Contains(s, "::") {
		return ""
	}
	return s
}

// hexID reports whether s is an id: 32 lower-case hex digits.
func hexID(s string) bool {
	if len(s) != 32 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
