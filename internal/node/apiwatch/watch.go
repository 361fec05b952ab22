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
	// pageSize limits the memory of a list: its JSON is decoded one page at a
	// time.
	pageSize = 25
	// watchTime is the shortest time of a watch, as in client-go.
	watchTime = 5 * time.Minute
	// minRetry and maxRetry limit the time between two attempts.
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// follower lists and watches a collection of objects. The goroutine of run
// calls its functions.
type follower struct {
	c        *Client
	path     string
	selector string // field selector
	metadata bool   // read metadata only

	reset  func([]object)         // receives the complete list
	change func(o object, b bool) // receives an added or changed object or, if b is false, a deleted one
	state  func(error)            // receives nil if the objects are up to date, else the error
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
		case err == nil: // the watch ended normally
			continue
		case gone(err):
			version = ""
			continue
		}
		f.state(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry + rand.N(retry/2)): // the agents of a fleet must not retry at the same time
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

// list reads all objects, and returns the version to watch from.
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

// watch handles changes until the server ends the watch, and returns the
// version to continue from.
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
