// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func jwt(claims string) string {
	return "x." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".y"
}

func TestReadClaims(t *testing.T) {
	f := func(claims string, want ...string) {
		t.Helper()
		if got := ReadClaims(jwt(claims)).Audiences; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", claims, got, want)
		}
	}
	f(`{"aud": "a"}`, "a")
	f(`{"aud": ["a", "b", 5]}`, "a", "b")
	f(`{"aud": 5}`)
	f(`[]`)
	for _, other := range []string{"", "a.b", "a.!.c", "a.b.c.d"} {
		if c := ReadClaims(other); c.Audiences != nil || !c.Expires.IsZero() {
			t.Errorf("%q: %+v", other, c)
		}
	}
	if c := ReadClaims(jwt(`{"sub": "system:serviceaccount:a:b"}`)); c.Subject != "system:serviceaccount:a:b" {
		t.Errorf("subject %q", c.Subject)
	}
	if c := ReadClaims(jwt(`{"exp": 1900000000}`)); !c.Expires.Equal(time.Unix(1_900_000_000, 0)) {
		t.Errorf("expires %v", c.Expires)
	}
	for _, odd := range []string{`{"exp": -1}`, `{"exp": 1e300}`, `{"exp": "x"}`} {
		if c := ReadClaims(jwt(odd)); !c.Expires.IsZero() {
			t.Errorf("%s: %v", odd, c.Expires)
		}
	}
}

// Whatever the headers hold, a token that is returned is short and printable.
func FuzzOf(f *testing.F) {
	f.Add("Bearer abc", "")
	f.Add("bearer  \x00", "x")
	f.Add("Basic abc", "")
	f.Add("Bearer "+strings.Repeat("x", 1<<20), "")
	f.Fuzz(func(t *testing.T, auth, other string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Authorization"], r.Header["Other"] = []string{auth}, []string{other}
		token, err := Of(r, "Other")
		if (err == nil) != (token != "") || len(token) > maxToken {
			t.Errorf("a token of %d bytes, %v", len(token), err)
		}
		for _, c := range []byte(token) {
			if c <= ' ' || c > '~' {
				t.Errorf("the token has the byte %q", c)
			}
		}
		ReadClaims(token)
	})
}
