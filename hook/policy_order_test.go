//go:build linux

package hook

import "testing"

// A job that two lines match gets what the first says, in either order of the two.
func TestPolicyFirstOfTwo(t *testing.T) {
	docs, tags := "job repository=acme/docs mode=none\n", "job ref=refs/tags/** mode=shared\n"
	both := environment("GITHUB_REPOSITORY", "acme/docs", "GITHUB_REF", "refs/tags/v1")
	for text, none := range map[string]bool{docs + tags: true, tags + docs: false, "default mode=shared\n" + docs: true, docs + "default mode=shared\n": true} {
		p, err := policy(t, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Decide(both); got.None != none {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
