// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxToken is the length limit of tokens in bytes. Tokens with many groups have some
// kilobytes.
const maxToken = 16 << 10

// Of returns the request's token. A header of the name other, if there is one, has
// precedence over Authorization.
func Of(r *http.Request, other string) (string, error) {
	token, alternative := "", ""
	if other != "" {
		token, alternative = r.Header.Get(other), ", or "+other+": TOKEN"
	}
	if auth := r.Header.Get("Authorization"); auth != "" && token == "" {
		scheme, rest, _ := strings.Cut(auth, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", errors.New("the header Authorization needs a Kubernetes token: Bearer TOKEN")
		}
		token = strings.TrimSpace(rest)
	}
	switch {
	case token == "":
		return "", errors.New("a Kubernetes token is required: Authorization: Bearer TOKEN" + alternative)
	case len(token) > maxToken:
		return "", errors.New("the token is longer than " + strconv.Itoa(maxToken) + " bytes")
	case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
		return "", errors.New("the token has characters that are not printable ASCII")
	}
	return token, nil
}

// Claims are what a JSON web token says. They are not verified: the API server does
// that.
type Claims struct {
	Subject   string // of a service account, its user name
	Audiences []string
	Expires   time.Time // zero: it does not say
}

// ReadClaims returns the claims of a JSON web token, and none for other tokens.
func ReadClaims(token string) (c Claims) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return c
	}
	var claims struct {
		Subject  string  `json:"sub"`
		Audience any     `json:"aud"`
		Expires  float64 `json:"exp"` // seconds since 1970
	}
	if json.Unmarshal(body, &claims) != nil {
		return c
	}
	c.Subject = claims.Subject
	switch aud := claims.Audience.(type) {
	case string:
		c.Audiences = []string{aud}
	case []any:
		for _, x := range aud {
			if s, ok := x.(string); ok {
				c.Audiences = append(c.Audiences, s)
			}
		}
	}
	if claims.Expires > 0 && claims.Expires < 1<<40 {
		c.Expires = time.Unix(int64(claims.Expires), 0)
	}
	return c
}
