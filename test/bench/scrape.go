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
	// paceEvery is the time between paced scrapes, whose bars are the same for
	// every shape: what they cost is waking up.
	paceEvery = 100 * time.Millisecond
	barPaced  = 0.5 // ms, both p50 and CPU
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
	page, err := n.Get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "scrape: %s, %d series, %d bytes\n", s.name, countSeries([]byte(page)), len(page))
	ref, err := startReference(ctx, n.dir, page)
	if err != nil {
		return nil, err
	}
	plain, err := saturate(cfg.scrapes, "", n.Agent, ref)
	if err = errors.Join(err, ref.Stop()); err != nil {
		return nil, err
	}
	zipped, err := saturate(cfg.scrapes, "gzip", n.Agent)
	if err != nil {
		return nil, err
	}
	rows := []Row{
		atMost(s.name+", p50", plain[0].p50, "ms", s.barP50),
		figure(s.name+", p99", plain[0].p99, "ms"),
		atMost(s.name+", CPU", plain[0].cpu, "ms", s.barCPU),
		figure("  the same bytes from a bare net/http handler, p50", plain[1].p50, "ms"),
		figure("  the same bytes from a bare net/http handler, CPU", plain[1].cpu, "ms"),
		atMost("  gzip, p50", zipped[0].p50, "ms", s.barP50),
		atMost("  gzip, CPU", zipped[0].cpu, "ms", s.barCPU),
	}
	for _, encoding := range []string{"", "gzip"} {
		paced, err := n.pace(ctx, cfg.paced, encoding)
		if err != nil {
			return nil, err
		}
		name := "  10 a second, "
		if encoding != "" {
			name = "  10 a second with gzip, "
		}
		rows = append(rows, atMost(name+"p50", paced.p50, "ms", barPaced), atMost(name+"CPU", paced.cpu, "ms", barPaced))
	}
	return rows, nil
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
	costs := make([]cost, len(agents))
	scrapers := make([]*agentrig.Scraper, len(agents))
	times := make([][]float64, len(agents))
	cpu := make([][]float64, len(agents)) // of each turn, by scrape
	for i, a := range agents {
		s, err := agentrig.NewScraper(a.URL, headers(encoding)...)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		scrapers[i] = s
	}
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

// pace scrapes 10 times a second, in every other second: what the seconds
// without scrapes cost is the collections'.
func (n *node) pace(ctx context.Context, scrapes int, encoding string) (cost, error) {
	const turn = int(time.Second / paceEvery)
	s, err := agentrig.NewScraper(n.URL, headers(encoding)...)
	if err != nil {
		return cost{}, err
	}
	defer s.Close()
	tick := time.NewTicker(paceEvery)
	defer tick.Stop()
	var times []float64
	var scraping, idle time.Duration
	for i := 0; len(times) < scrapes || i%2 == 1; i++ {
		before, err := n.CPU()
		if err != nil {
			return cost{}, err
		}
		for range turn {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return cost{}, ctx.Err()
			}
			if i%2 == 1 {
				continue
			}
			start := time.Now()
			if _, err := s.Scrape(); err != nil {
				return cost{}, err
			}
			times = append(times, ms(time.Since(start)))
		}
		after, err := n.CPU()
		if err != nil {
			return cost{}, err
		}
		if i%2 == 0 {
			scraping += after - before
		} else {
			idle += after - before
		}
	}
	return costOf(times, []float64{ms(scraping-idle) / float64(len(times))}), nil
}
