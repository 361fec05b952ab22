// SPDX-License-Identifier: Apache-2.0

package scalerig

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Meter reads a sample of a replica's /metrics: a name, with its labels as they are written there. A replica
// that does not answer within two seconds fails the test.
func Meter(t *testing.T, url, sample string) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for line := range strings.Lines(Get(ctx, t, url+"/metrics")) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			return v
		}
	}
	return 0
}

// Get returns a page.
func Get(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", url, resp.Status, err)
	}
	return string(body)
}

// Leads waits until a replica leads, or does not. It has to serve its page and metrics all the while.
func Leads(t *testing.T, url string, want bool) {
	t.Helper()
	Eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		Get(ctx, t, url+"/api/v1/view")
		if is := Meter(t, url, "gpupilot_leader") == 1; is != want {
			return fmt.Errorf("%s leads: %v, want %v", url, is, want)
		}
		return nil
	})
}
