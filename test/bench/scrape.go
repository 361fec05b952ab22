// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	// The bars are ratios to a bare handler that sends the same bytes.
	barScrape = 1.3
	barPaced  = 2 // at 10 scrapes a second, one of which renders and compresses the page
	// paceEvery is the time between paced scrapes.
	paceEvery = 100 * time.Millisecond
	// turn is how many scrapes are made in a row before it is the reference's
	// turn: what else the machine does then falls on both. There is a garbage
	// collection in each.
	turn = 500
)

// benchScrape measures what a scrape costs.
func benchScrape(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	var rows []Row
	for _, s := range shapes() {
		n, err := startNode(ctx, cfg, s, agentrig.Config{})
		if err != nil {
			return nil, err
		}
		r, err := n.scrapeRows(ctx, cfg, s, out)
		if err = errors.Join(err, n.stop()); err != nil {
			return nil, err
		}
		rows = append(rows, r...)
	}
	return rows, nil
}

func (n *node) scrapeRows(ctx context.Context, cfg config, s shape, out io.Writer) ([]Row, error) {
	var rows []Row
	for _, encoding := range []string{"", "gzip"} {
		name := s.name + ", "
		if encoding != "" {
			name = "  gzip, "
		}
		page, err := n.page(encoding)
		if err != nil {
			return nil, err
		}
		if encoding == "" {
			fmt.Fprintf(out, "scrape: %s, %d series, %d bytes\n", s.name, countSeries(page), len(page))
		}
		r, err := n.compare(ctx, cfg, name, encoding, page)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r...)
	}
	return rows, nil
}

// page returns the bytes of a scrape, compressed or not.
func (n *node) page(encoding string) ([]byte, error) {
	s, err := agentrig.NewScraper(n.URL, headers(encoding)...)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	page, err := s.Scrape()
	return slices.Clone(page), err
}

// compare measures scrapes in turns with those of a bare handler that sends page.
func (n *node) compare(ctx context.Context, cfg config, name, encoding string, page []byte) ([]Row, error) {
	ref, err := startReference(ctx, n.dir, page)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ref.Stop() }() // it has said all that it had to say
	fast, err := saturate(cfg.scrapes, encoding, n.Agent, ref)
	if err != nil {
		return nil, err
	}
	paced, err := pace(ctx, cfg.paced, encoding, n.Agent, ref)
	if err != nil {
		return nil, err
	}
	return []Row{
		relative(name+"p50", fast[0].p50, "ms", bareHandler, fast[1].p50, barScrape),
		relative("  CPU", fast[0].cpu, "ms", bareHandler, fast[1].cpu, barScrape),
		figure("  p99", fast[0].p99, "ms"),
		relative("  10 a second, p50", paced[0].p50, "ms", bareHandler, paced[1].p50, barPaced),
		relative("  10 a second, CPU", paced[0].cpu, "ms", bareHandler, paced[1].cpu, barPaced),
	}, nil
}

func countSeries(page []byte) int {
	n := 0
	for line := range bytes.Lines(page) {
		if line[0] != '#' {
			n++
		}
	}
	return n
}

// cost is what a scrape costs: times in milliseconds.
type cost struct {
	p50, p99, cpu float64
}

// costOf makes it of the times of scrapes and of the CPU times of turns, of
// which the median counts: a turn in which others had the caches does not.
func costOf(times, cpu []float64) cost {
	slices.Sort(times)
	slices.Sort(cpu)
	return cost{quantile(times, 0.5), quantile(times, 0.99), quantile(cpu, 0.5)}
}

// headers are a scrape's.
func headers(encoding string) []string {
	if encoding == "" {
		return nil
	}
	return []string{"Accept-Encoding", encoding}
}

// saturate scrapes each agent scrapes times over one connection, as fast as it
// answers, and says what that cost, in the agents' order.
func saturate(scrapes int, encoding string, agents ...*agentrig.Agent) ([]cost, error) {
	scrapers, err := connect(encoding, agents)
	if err != nil {
		return nil, err
	}
	defer disconnect(scrapers)
	costs := make([]cost, len(agents))
	times := make([][]float64, len(agents))
	cpu := make([][]float64, len(agents)) // of each turn, by scrape
	for done := 0; done < scrapes; done += turn {
		for i, a := range agents {
			before, err := a.CPU()
			if err != nil {
				return nil, err
			}
			for range turn {
				start := time.Now()
				if _, err := scrapers[i].Scrape(); err != nil {
					return nil, err
				}
				times[i] = append(times[i], ms(time.Since(start)))
			}
			after, err := a.CPU()
			if err != nil {
				return nil, err
			}
			cpu[i] = append(cpu[i], ms(after-before)/turn)
		}
	}
	for i := range agents {
		costs[i] = costOf(times[i], cpu[i])
	}
	return costs, nil
}

// pace scrapes each agent 10 times a second, in every other second: what the seconds
// without scrapes cost is the collections'.
func pace(ctx context.Context, scrapes int, encoding string, agents ...*agentrig.Agent) ([]cost, error) {
	const turn = int(time.Second / paceEvery)
	scrapers, err := connect(encoding, agents)
	if err != nil {
		return nil, err
	}
	defer disconnect(scrapers)
	tick := time.NewTicker(paceEvery)
	defer tick.Stop()
	times := make([][]float64, len(agents))
	extra := make([]time.Duration, len(agents)) // CPU time, above that without scrapes
	for i := 0; len(times[0]) < scrapes || i%2 == 1; i++ {
		before, err := cpuTimes(agents)
		if err != nil {
			return nil, err
		}
		for range turn {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if i%2 == 1 {
				continue
			}
			first := len(times[0])
			for j := range scrapers { // in turns: the second one finds the client's caches warm
				k := (first + j) % len(scrapers)
				start := time.Now()
				if _, err := scrapers[k].Scrape(); err != nil {
					return nil, err
				}
				times[k] = append(times[k], ms(time.Since(start)))
			}
		}
		after, err := cpuTimes(agents)
		if err != nil {
			return nil, err
		}
		for k := range agents {
			if used := after[k] - before[k]; i%2 == 0 {
				extra[k] += used
			} else {
				extra[k] -= used
			}
		}
	}
	costs := make([]cost, len(agents))
	for k := range agents {
		costs[k] = costOf(times[k], []float64{ms(extra[k]) / float64(len(times[k]))})
	}
	return costs, nil
}

// connect opens a connection to each agent.
func connect(encoding string, agents []*agentrig.Agent) (out []*agentrig.Scraper, err error) {
	for _, a := range agents {
		s, err := agentrig.NewScraper(a.URL, headers(encoding)...)
		if err != nil {
			disconnect(out)
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func disconnect(scrapers []*agentrig.Scraper) {
	for _, s := range scrapers {
		s.Close()
	}
}

// cpuTimes returns the CPU times of the agents.
func cpuTimes(agents []*agentrig.Agent) (out []time.Duration, err error) {
	for _, a := range agents {
		t, err := a.CPU()
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}
