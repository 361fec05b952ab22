// SPDX-License-Identifier: Apache-2.0

package apiwatch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"
)

// ConfigMap is one key of a ConfigMap.
type ConfigMap struct {
	Client         *Client
	Namespace      string
	Name           string
	Key            string
	last           string
	lastIsThere    bool
	lastStateError string
}

func (m *ConfigMap) path() string {
	return "/api/v1/namespaces/" + url.PathEscape(m.Namespace) + "/configmaps"
}

// Get returns the key's text.
func (m *ConfigMap) Get(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	body, err := m.Client.get(ctx, m.path()+"/"+url.PathEscape(m.Name), url.Values{}, "application/json")
	if err != nil {
		return "", fmt.Errorf("ConfigMap %s/%s: %w", m.Namespace, m.Name, err)
	}
	defer func() { _ = body.Close() }()
	var o object
	if err := json.NewDecoder(body).Decode(&o); err != nil {
		return "", fmt.Errorf("ConfigMap %s/%s: %w", m.Namespace, m.Name, err)
	}
	text, ok := o.Data[m.Key]
	if !ok {
		return "", fmt.Errorf("ConfigMap %s/%s has no key %q", m.Namespace, m.Name, m.Key)
	}
	m.last, m.lastIsThere = text, true
	return text, nil
}

// Follow calls changed with the key's text each time the text differs from that
// of Get or the last call. It calls changed with an error, once for each, if
// the key is removed or cannot be watched. It returns when ctx is done.
func (m *ConfigMap) Follow(ctx context.Context, changed func(text string, err error)) {
	fail := func(err error) {
		if err.Error() != m.lastStateError {
			m.lastStateError = err.Error()
			changed("", err)
		}
	}
	take := func(o object) {
		text, ok := o.Data[m.Key]
		switch {
		case !ok:
			m.lastIsThere = false
			fail(fmt.Errorf("ConfigMap %s/%s has no key %q", m.Namespace, m.Name, m.Key))
		case !m.lastIsThere || text != m.last:
			m.last, m.lastIsThere, m.lastStateError = text, true, ""
			changed(text, nil)
		}
	}
	f := follower{
		c: m.Client, path: m.path(), selector: "metadata.name=" + m.Name,
		reset: func(all []object) {
			if len(all) == 0 {
				take(object{})
				return
			}
			take(all[0])
		},
		change: func(o object, there bool) {
			switch {
			case o.Metadata.Name == "": // a bookmark
			case !there:
				take(object{})
			default:
				take(o)
			}
		},
		state: func(err error) {
			if err != nil {
				fail(err)
			}
		},
	}
	f.run(ctx)
}
