// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package monitoring

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// server is a Prometheus.
type server struct{ address string }

// patience bounds the wait for series: only a failure takes that long.
const patience = 5 * time.Minute

// named is a query with what it is for.
type named struct{ name, expr string }

// query returns how many series with a number an instant query finds.
func (s server) query(expr string) (int, error) {
	// A number that stands in for nothing proves nothing.
	expr = strings.ReplaceAll(expr, " or vector(0)", "")
	resp, err := http.PostForm(s.address+"/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Error string
		Data  struct {
			Result []struct{ Value [2]any } // a time, and the value as text
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Error != "" {
		return 0, fmt.Errorf("%s", answer.Error)
	}
	n := 0
	for _, r := range answer.Data.Result {
		if r.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}

// awaitAll waits until every query has found something. A query that fails ends the
// test's patience at once: its error would not go away.
func (s server) awaitAll(t *testing.T, pending []named) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for ; len(pending) > 0; time.Sleep(200 * time.Millisecond) {
		var empty []named
		for _, q := range pending {
			n, err := s.query(q.expr)
			if err != nil {
				t.Errorf("%s: %v\n%s", q.name, err, q.expr)
				continue
			}
			if n == 0 {
				empty = append(empty, q)
			}
		}
		if pending = empty; time.Now().After(deadline) {
			break
		}
	}
	for _, q := range pending {
		t.Errorf("%s finds nothing:\n%s", q.name, q.expr)
	}
}

func (s server) await(t *testing.T, name, expr string) {
	t.Helper()
	s.awaitAll(t, []named{{name, expr}})
}
