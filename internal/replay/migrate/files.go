// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Files collects the objects of policy files for a replay.
type Files struct {
	Options  Options
	policies []policy.Named
	files    []string // of the policies
	others   []*Result
	sources  []string // of the others
}

// Add adds the objects of a file. Its HPAs and ScaledObjects are taken out; the rest must
// be GPUAutoscalers.
func (p *Files) Add(file string, text []byte) error {
	docs, err := Split(file, text)
	if err != nil {
		return err
	}
	var rest [][]byte
	for _, d := range docs {
		if d.Kind != KindHPA && d.Kind != KindScaledObject {
			rest = append(rest, d.Text)
			continue
		}
		r, err := Convert(d, p.Options)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		p.others, p.sources = append(p.others, r), append(p.sources, file)
	}
	if len(rest) == 0 && len(docs) > 0 {
		return nil
	}
	if len(rest) < len(docs) {
		text = bytes.Join(rest, []byte("\n---\n"))
	}
	parsed, err := policy.Parse(file, text)
	for range parsed {
		p.files = append(p.files, file)
	}
	p.policies = append(p.policies, parsed...)
	return err
}

// Contenders returns the policies and the other objects for the replays.
func (p *Files) Contenders() (policies []policy.Named, given []contender.Entry, err error) {
	addEquivalents := len(p.policies) == 0
	for i, r := range p.others {
		e, err := r.Entry()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %s %w", p.sources[i], r.Kind, err)
		}
		for name, n := e.Name, 2; slices.ContainsFunc(given, func(x contender.Entry) bool { return x.Name == e.Name }); n++ {
			e.Name = fmt.Sprintf("%s (%d)", name, n)
		}
		given = append(given, e)
		if addEquivalents {
			n, err := r.Policy()
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", p.sources[i], err)
			}
			p.policies, p.files = append(p.policies, n), append(p.files, p.sources[i])
		}
	}
	backtest.UniqueNames(p.policies, p.files)
	return p.policies, given, nil
}
