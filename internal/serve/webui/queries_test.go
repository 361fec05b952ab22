// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"net/http"
	"slices"
	"testing"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/api"
)

// A service account's namespace pays, and not one that the account may read besides.
func TestWhoPaysForQueries(t *testing.T) {
	c := &cluster{users: map[string][]string{"a/grafana": {"a", "b"}, "ann": {"a", "b"}, "b/all": {"*"}}, known: true}
	q := NewQueries(New(fixed{fleet()}, c), func() []string { return []string{"b", "a", "b", "c"} })
	for _, tt := range []struct {
		token string
		want  api.Viewer
	}{
		{"a/grafana", api.Viewer{Namespaces: []string{"a", "b"}, Payer: fair.Namespace("a")}},
		{"ann", api.Viewer{Namespaces: []string{"a", "b"}}},
		{"b/all", api.Viewer{Payer: fair.Namespace("b")}},
	} {
		var got api.Viewer
		w := ask(q.Guard(func(_ http.ResponseWriter, _ *http.Request, v api.Viewer) { got = v }), "/", "Authorization", "Bearer "+tt.token)
		if w.Code != 200 || got.Payer != tt.want.Payer || !slices.Equal(got.Namespaces, tt.want.Namespaces) {
			t.Errorf("%s: %d, %+v, want %+v", tt.token, w.Code, got, tt.want)
		}
	}
}
