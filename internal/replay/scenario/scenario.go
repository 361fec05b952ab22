// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// The sections of a scenario's file.
const (
	policySection    = "policy.yaml"
	timelineSection  = "timeline"
	promisesSection  = "promises"
	decisionsSection = "decisions"
)

// Scenario is a parsed scenario file.
type Scenario struct {
	Title  string // the file's first line
	Policy scale.Policy

	compiled policy.Compiled
	events   []event
	promises []promise
	recorded string
	archive  *txtar.Archive
}

// Parse parses a scenario. Errors name file, section, line and value.
func Parse(name string, data []byte) (*Scenario, error) {
	s := &Scenario{archive: txtar.Parse(data)}
	title, _, _ := strings.Cut(strings.TrimSpace(string(s.archive.Comment)), "\n")
	s.Title = strings.TrimLeft(title, "# ")
	for i := range s.archive.Files {
		f := &s.archive.Files[i]
		var err error
		switch f.Name {
		case policySection:
			err = s.policy(f.Data)
		case timelineSection:
			if s.events, err = parseTimeline(f.Data); err == nil && len(s.events) == 0 {
				err = errors.New("it is empty: want lines such as 0s replicas=2 serving=2@97")
			}
		case promisesSection:
			s.promises, err = parsePromises(f.Data)
		case decisionsSection:
			s.recorded = string(f.Data)
		default:
			err = fmt.Errorf("unknown section: want %s, %s, %s or %s", policySection, timelineSection, promisesSection, decisionsSection)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: section %s: %w", name, f.Name, err)
		}
	}
	if len(s.Policy.Signals) == 0 || len(s.events) == 0 {
		return nil, fmt.Errorf("%s: a scenario needs the sections %s and %s", name, policySection, timelineSection)
	}
	all := 0.0
	for i := range s.events {
		all += math.Ceil((s.endOf(i) - s.events[i].at).Seconds())
	}
	if all > maxMoments {
		return nil, fmt.Errorf("%s: section %s: the timeline has %.0f s, want %d at most", name, timelineSection, all, maxMoments)
	}
	return s, nil
}

func (s *Scenario) policy(b []byte) error {
	all, err := policy.Parse(policySection, b)
	if err != nil {
		return err
	}
	if len(all) != 1 {
		return fmt.Errorf("%d policies, want one", len(all))
	}
	s.Policy, s.compiled = all[0].Policy, all[0].Compiled
	return nil
}

// Moment is one decision of a run.
type Moment struct {
	At       time.Duration // on the timeline
	Line     bool          // the timeline has a line for this moment
	Waits    bool          // the HorizontalPodAutoscaler applies the decision at its next sync
	Decision scale.Decision
}

// Run runs the timeline: one decision at each of its lines, and one per second between
// them. remember converts the engine's state between two decisions, as a restart does;
// nil: it stays unchanged.
func (s *Scenario) Run(remember func(scale.State) scale.State) ([]Moment, error) {
	var out []Moment
	w := newWorld(s.Policy)
	w.compiled = s.compiled
	for i := range s.events {
		e := &s.events[i]
		if err := w.apply(e); err != nil {
			return nil, fmt.Errorf("section %s: line %d: %w", timelineSection, e.line, err)
		}
		for at := e.at; at < s.endOf(i); at += tick {
			if remember != nil {
				w.state = remember(w.state)
			}
			m := Moment{At: at, Line: at == e.at}
			m.Decision, m.Waits = w.decide(at)
			out = append(out, m)
		}
	}
	return out, nil
}

const (
	tick       = time.Second
	maxMoments = 200_000 // of a scenario: more than two days
)

// endOf returns the end of event i. Every event has at least one decision.
func (s *Scenario) endOf(i int) time.Duration {
	if i+1 < len(s.events) {
		return max(s.events[i+1].at, s.events[i].at+1)
	}
	return s.events[i].at + 1
}

// Decisions formats a run: one line for each decision that changed the replicas or the
// rule.
func Decisions(moments []Moment) string { return formatMoments(moments, false) }

// AllDecisions formats a run like Decisions, with the decisions at all other lines of
// the timeline.
func AllDecisions(moments []Moment) string { return formatMoments(moments, true) }

func formatMoments(moments []Moment, all bool) string {
	var b strings.Builder
	for i := range moments {
		m := &moments[i]
		if i == 0 || all && m.Line || m.isChange(&moments[i-1]) {
			m.write(&b)
		}
	}
	return b.String()
}

// isChange reports whether the decision differs from the previous one.
func (m *Moment) isChange(before *Moment) bool {
	d, last := &m.Decision, &before.Decision
	if m.Waits && before.Waits && d.Replicas == last.Replicas && d.Current == last.Current && d.Rule == last.Rule {
		return false
	}
	return d.Changes() || last.Rule != d.Rule || last.Replicas != d.Current
}

func (m *Moment) write(b *strings.Builder) {
	d := &m.Decision
	fmt.Fprintf(b, "%-7v %d → %d  %s: %s", m.At, d.Current, d.Replicas, d.Rule, d.Sentence())
	if len(d.Victims) > 0 {
		fmt.Fprintf(b, "; first to go: %s", strings.Join(d.Victims, ", "))
	}
	if m.Waits {
		b.WriteString("; the HorizontalPodAutoscaler has not synced yet")
	}
	b.WriteByte('\n')
}

// Recorded returns the expected decisions in the file.
func (s *Scenario) Recorded() string { return s.recorded }

// WithDecisions returns the file with its decisions replaced.
func (s *Scenario) WithDecisions(text string) []byte {
	a := txtar.Archive{Comment: s.archive.Comment}
	for _, f := range s.archive.Files {
		if f.Name != decisionsSection {
			a.Files = append(a.Files, f)
		}
	}
	if n := len(a.Files); n > 0 { // a blank line before the section
		a.Files[n-1].Data = append(bytes.TrimRight(a.Files[n-1].Data, "\n"), "\n\n"...)
	}
	a.Files = append(a.Files, txtar.File{Name: decisionsSection, Data: []byte(text)})
	return txtar.Format(&a)
}

// lines returns a section's lines with their numbers, without comments and blank lines.
func lines(b []byte) (out []numberedLine) {
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		if i := strings.IndexByte(line, '#'); i >= 0 {
			line = line[:i]
		}
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, numberedLine{n, line})
		}
	}
	return out
}

type numberedLine struct {
	line int
	text string
}
