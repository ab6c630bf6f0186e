//go:build linux

package hook

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/org/hostlock-action/lock"
)

// What a peer typed (an owner, a reason, a command) ends up in places that
// obey what they read. Each place has one function below, and nothing else makes
// text safe for it. Lines on stderr have their own, in the command line.

// fileDelimiter ends a value in the runner's command files. It is the one that the
// library go-githubactions writes.
const fileDelimiter = "_GitHubActionsFileCommandDelimeter_"

// maxValue bounds a value in a command file, in bytes.
const maxValue = 64 << 10

// message is any text as the message of a workflow command. The client
// escapes what would end the command; what a log viewer would obey inside a
// message is broken here.
func message(s string) string {
	s = lock.Flatten(s, maxValue)
	for _, trigger := range [][2]string{{"::", ": :"}, {"##[", "# #["}} {
		for strings.Contains(s, trigger[0]) { // again for ":::"
			s = strings.ReplaceAll(s, trigger[0], trigger[1])
		}
	}
	return s
}

// value is any text as a value in a command file: one line that is no
// delimiter.
func value(s string) string {
	return strings.ReplaceAll(lock.Flatten(s, maxValue), fileDelimiter, "")
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// cell is any text in a table of a Markdown summary. As an element it can make
// neither a mention, a link nor an emoji (GitHub leaves those alone in code), and
// as entities neither markup, a tag nor the end of the cell.
func cell(s string) string {
	s = lock.Flatten(s, 512)
	if s == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString("<code>")
	for i, r := range s {
		switch {
		case r == '.' && i > 0 && s[i-1]|0x20 == 'w': // www. makes a link by itself
			b.WriteString("&#46;")
		case r < 0x80 && !alphanumeric(byte(r)) && !strings.ContainsRune(" -.,/+=();", r), r >= 0x80 && !unicode.IsPrint(r):
			b.WriteString("&#" + strconv.Itoa(int(r)) + ";")
		default:
			b.WriteRune(r)
		}
	}
	b.WriteString("</code>")
	return b.String()
}

// plain is a sentence of ours in Markdown that may quote what a record says:
// cell without the element.
func plain(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(cell(s), "<code>"), "</code>")
}

// tame rewrites JSON so that no string in it means anything to a shell, a log,
// Markdown or a command file; to a JSON reader it is the same. People put an
// output between quotes in a script, where a peer's quote would end them.
func tame(json []byte) string {
	var b strings.Builder
	inside, escaped := false, false
	var last byte
	for i, c := range json {
		switch {
		case !inside:
			inside = c == '"'
			b.WriteByte(c)
		case escaped:
			escaped = false
			if c == '"' || c == '\\' {
				unicodeEscape(&b, c)
			} else {
				b.WriteByte('\\')
				b.WriteByte(c)
			}
		case c == '\\':
			escaped = true
		case c == '"':
			inside = false
			b.WriteByte(c)
		case c >= 0x80, c == ' ', alphanumeric(c), strings.IndexByte("-.,/+=", c) >= 0, c == ':' && last != ':',
			c == '_' && !strings.HasPrefix(string(json[i:min(i+len(fileDelimiter), len(json))]), fileDelimiter):
			b.WriteByte(c)
		default:
			unicodeEscape(&b, c)
		}
		last = c
	}
	return b.String()
}

func unicodeEscape(b *strings.Builder, c byte) {
	const digits = "0123456789abcdef"
	b.WriteString(`\u00`)
	b.WriteByte(digits[c>>4])
	b.WriteByte(digits[c&15])
}
