// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	// checkPatience is how long a program that has just been installed may take.
	checkPatience = time.Minute
	checkEvery    = time.Second
)

// Check returns nil once a program is ready, whose probes are at an address, and the API
// server answers at these paths, such as the discovery of an aggregated API. After a minute
// it fails with what has no answer. Discovery needs no right but that of every account.
func (c *Clients) Check(ctx context.Context, address string, paths ...string) error {
	questions := []question{{strings.TrimSuffix(address, "/") + "/readyz", isOK}}
	for _, path := range paths {
		questions = append(questions, question{path, func(ctx context.Context, path string) error {
			_, err := c.Set.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
			return err
		}})
	}
	for _, q := range questions {
		if err := q.answered(ctx); err != nil {
			return fmt.Errorf("%s has no answer: %w", q.at, err)
		}
		c.log.Info("answers", "at", q.at)
	}
	return nil
}

// question is one that a running program answers.
type question struct {
	at  string
	ask func(ctx context.Context, at string) error
}

// answered asks until there is an answer, for a minute.
func (q question) answered(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	poll := time.NewTicker(checkEvery)
	defer poll.Stop()
	var last error
	for {
		err := q.ask(ctx, q.at)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // a time-out of ours says nothing
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-poll.C:
		}
	}
}

// isOK gets a URL, and fails for another status than 200.
func isOK(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}
