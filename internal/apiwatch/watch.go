// SPDX-License-Identifier: Apache-2.0

package apiwatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"
)

const (
	// pageSize bounds the memory of a list: its JSON is decoded a page at a time.
	pageSize = 25
	// watchTime is how long a watch lasts at least, as client-go's.
	watchTime = 5 * time.Minute
	// minRetry and maxRetry bound the time between two attempts.
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// follower keeps up with a collection of objects. Its functions are called by
// the goroutine of run.
type follower struct {
	c        *Client
	path     string
	selector string // field selector
	metadata bool   // metadata is enough

	reset  func([]object)         // all there are
	change func(o object, b bool) // one that is there, or, if b is false, not any more
	state  func(error)            // nil: what was told is up to date
}

// run lists and watches until ctx is done.
func (f *follower) run(ctx context.Context) {
	retry := minRetry
	version := ""
	for ctx.Err() == nil {
		var err error
		if version == "" {
			version, err = f.list(ctx)
		}
		if err == nil {
			f.state(nil)
			retry = minRetry
			version, err = f.watch(ctx, version)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil: // a watch that came to its end
			continue
		case gone(err):
			version = ""
			continue
		}
		f.state(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry + rand.N(retry/2)): // a fleet must not come back at once
		}
		retry = min(2*retry, maxRetry)
	}
}

func (f *follower) accept(list string) string {
	if f.metadata {
		return fmt.Sprintf(metadataOnly, list)
	}
	return "application/json"
}

func (f *follower) query() url.Values {
	q := url.Values{}
	if f.selector != "" {
		q.Set("fieldSelector", f.selector)
	}
	return q
}

// list reads all objects, and gives the version to watch from.
func (f *follower) list(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var all []object
	q := f.query()
	q.Set("limit", strconv.Itoa(pageSize))
	for {
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []object `json:"items"`
		}
		body, err := f.c.get(ctx, f.path, q, f.accept("List"))
		if err != nil {
			return "", fmt.Errorf("list %s: %w", f.path, err)
		}
		err = json.NewDecoder(body).Decode(&page)
		_ = body.Close()
		if err != nil {
			return "", fmt.Errorf("list %s: %w", f.path, err)
		}
		all = append(all, page.Items...)
		if page.Metadata.Continue == "" {
			f.reset(all)
			return page.Metadata.ResourceVersion, nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// watch takes changes in until the server ends it, and gives the version to go
// on from.
func (f *follower) watch(ctx context.Context, version string) (string, error) {
	seconds := int((watchTime + rand.N(watchTime)).Seconds())
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+time.Minute)
	defer cancel()
	q := f.query()
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	q.Set("resourceVersion", version)
	q.Set("timeoutSeconds", strconv.Itoa(seconds))
	body, err := f.c.get(ctx, f.path, q, f.accept(""))
	if err != nil {
		return version, fmt.Errorf("watch %s: %w", f.path, err)
	}
	defer func() { _ = body.Close() }()
	start := time.Now()
	d := json.NewDecoder(body)
	for {
		var e struct {
			Type   string `json:"type"`
			Object object `json:"object"`
		}
		if err := d.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) && time.Since(start) > minRetry {
				return version, nil
			}
			return version, fmt.Errorf("watch %s: %w", f.path, err)
		}
		switch e.Type {
		case "ADDED", "MODIFIED":
			f.change(e.Object, true)
		case "DELETED":
			f.change(e.Object, false)
		case "ERROR":
			return version, fmt.Errorf("watch %s: %w", f.path, &statusError{e.Object.Code, e.Object.Message})
		}
		if v := e.Object.Metadata.ResourceVersion; v != "" {
			version = v
		}
	}
}
