// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	// barHung allows scrapes during a hang the time that they take without one. The
	// rest is for the machine's noise.
	barHung = 1.5
	// hangEvery is the time between two scrapes, and so the resolution.
	hangEvery  = 50 * time.Millisecond
	hangingGPU = 3
	// barOldest allows a GPU's values one interval and a missed one.
	barOldest = 2.5 // s
	// recovers bounds the wait for a device to be back.
	recovers = 10 * time.Second
)

// benchHang lets the library hang in every call on one GPU: scrapes must not
// notice, its series must leave when they are too old, the other GPUs' stay, and
// all come back by themselves.
func benchHang(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	fmt.Fprintf(out, "hang: the library hangs for %v on one of %d GPUs\n", cfg.hang, gpus)
	n, err := startNode(ctx, cfg, shapes()[0], agentrig.Config{})
	if err != nil {
		return nil, err
	}
	h, err := n.hang(ctx, cfg.hang)
	if err = errors.Join(err, n.stop()); err != nil {
		return nil, err
	}
	// Series may be as old as MaxAge, plus a tick until the next page.
	leave := (gpu.MaxAge(time.Second) + 1500*time.Millisecond).Seconds()
	return []Row{
		relative("a GPU hangs, scrape p50 meanwhile", h.during.p50, "ms", "before", h.before.p50, barHung),
		atMost("  its series have left after", h.left.Seconds(), "s", leave),
		atMost("  scrapes that lacked another GPU", float64(h.lacking), "", 0),
		atMost("  oldest value of another GPU", h.oldest.Seconds(), "s", barOldest),
		atMost("  its series are back after the hang within", h.back.Seconds(), "s", barOldest),
	}, nil
}

// hung is what a hang did.
type hung struct {
	before, during cost
	left           time.Duration // from the hang to the first scrape without the device
	back           time.Duration // from its end to the first scrape with it
	lacking        int           // scrapes that lacked another device
	oldest         time.Duration // the age that another device's values ever had
}

func (n *node) hang(ctx context.Context, length time.Duration) (hung, error) {
	var h hung
	s, err := agentrig.NewScraper(n.URL)
	if err != nil {
		return h, err
	}
	defer s.Close()
	w := watcher{scraper: s, hangs: hangingGPU}
	if h.before, err = w.until(ctx, 3*time.Second, func(bool) bool { return false }); err != nil {
		return h, err
	}
	if !w.shown {
		return h, errors.New("the GPU that is to hang has no series")
	}
	state := fmt.Sprintf("gpus %d\ngpu * util 57\n", gpus)
	if err := n.library.Set(fmt.Sprintf("%sgpu %d hang %d\n", state, hangingGPU, length.Milliseconds())); err != nil {
		return h, err
	}
	began := time.Now()
	h.during, err = w.until(ctx, length, func(shown bool) bool {
		if !shown && h.left == 0 {
			h.left = time.Since(began)
		}
		return false
	})
	if err != nil {
		return h, err
	}
	if h.left == 0 {
		return h, fmt.Errorf("the series of the hung GPU did not leave within %v", length)
	}
	if err := n.library.Set(state); err != nil {
		return h, err
	}
	ended := time.Now()
	if _, err := w.until(ctx, recovers, func(shown bool) bool { return shown }); err != nil {
		return h, err
	}
	if !w.shown {
		return h, fmt.Errorf("the GPU is not back %v after its hang", recovers)
	}
	h.back, h.lacking, h.oldest = time.Since(ended), w.lacking, w.oldest
	return h, nil
}

// watcher looks at page after page.
type watcher struct {
	scraper *agentrig.Scraper
	hangs   int // the GPU that hangs

	shown   bool // the last page has it
	lacking int
	oldest  time.Duration
}

// until scrapes for a time, or until enough says so of a page.
func (w *watcher) until(ctx context.Context, length time.Duration, enough func(shown bool) bool) (cost, error) {
	tick := time.NewTicker(hangEvery)
	defer tick.Stop()
	var times []float64
	for begin := time.Now(); time.Since(begin) < length; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return cost{}, ctx.Err()
		}
		start := time.Now()
		page, err := w.scraper.Scrape()
		if err != nil {
			return cost{}, err
		}
		times = append(times, ms(time.Since(start)))
		if err := w.look(page, time.Now()); err != nil {
			return cost{}, err
		}
		if enough(w.shown) {
			break
		}
	}
	return costOf(times, nil), nil
}

// look notes what a page lacks and how old it is. The fake's UUIDs end with the
// GPU's number.
func (w *watcher) look(page []byte, now time.Time) error {
	w.shown = bytes.Contains(page, fmt.Appendf(nil, "\nDCGM_FI_DEV_FB_USED{gpu=\"%d\"", w.hangs))
	others := bytes.Count(page, []byte("\nDCGM_FI_DEV_FB_USED{"))
	if w.shown {
		others--
	}
	if others < gpus-1 {
		w.lacking++
	}
	hung := fmt.Sprintf("%012d", w.hangs)
	for line := range bytes.Lines(page) {
		sample, ok := strings.CutPrefix(string(line), `gpupilot_device_last_success_timestamp_seconds{uuid="`)
		if !ok {
			continue
		}
		uuid, value, _ := strings.Cut(strings.TrimSpace(sample), `"} `)
		at, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("when %s was read: %w", uuid, err)
		}
		if !strings.HasSuffix(uuid, hung) {
			w.oldest = max(w.oldest, now.Sub(time.UnixMilli(int64(at*1000))))
		}
	}
	return nil
}
