// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"context"
	"net"
)

// Reviewer authenticates tokens as Access does, with a type of viewers of its own. The zero
// value is the viewer of an invalid token; *access.Reviewer is a Reviewer.
type Reviewer[V Viewer] interface {
	Known(token string) bool
	Authenticate(ctx context.Context, token string) (V, error)
}

type tokens[V interface {
	comparable
	Viewer
}] struct{ Reviewer[V] }

// Authenticate implements Access.
func (t tokens[V]) Authenticate(ctx context.Context, token string) (Viewer, error) {
	v, err := t.Reviewer.Authenticate(ctx, token)
	if none := *new(V); v == none || err != nil {
		return nil, err
	}
	return v, nil
}

// Tokens is a Reviewer as Access.
func Tokens[V interface {
	comparable
	Viewer
}](r Reviewer[V]) Access {
	return tokens[V]{r}
}

// IsLoopback reports whether an address can be reached from this machine only, so that a
// page without access control is for its users.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
