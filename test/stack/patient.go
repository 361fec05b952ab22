// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"errors"
	"net"
	"net/http"
	"time"
)

// patient sends a request again that has not reached the API server, because a busy machine did not finish a handshake in
// the ten seconds that client-go waits for it.
type patient struct{ http.RoundTripper }

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	for began := time.Now(); ; {
		resp, err := p.RoundTripper.RoundTrip(r)
		if !isHandshake(err) || time.Since(began) > Patience || r.Context().Err() != nil {
			return resp, err
		}
		body := r.Body
		if body != nil && body != http.NoBody {
			if r.GetBody == nil {
				return resp, err
			}
			if body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		r = r.Clone(r.Context())
		r.Body = body
	}
}

// isHandshake reports whether an error is net/http's about a handshake that took too long. It has no type.
func isHandshake(err error) bool {
	x, ok := errors.AsType[net.Error](err)
	return ok && x.Timeout() && x.Error() == "net/http: TLS handshake timeout"
}
