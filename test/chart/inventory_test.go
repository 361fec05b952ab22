// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// inventory is every object of a cluster at one time, of all kinds: the UIDs by identity, such as "apps/Deployment team/chat".
// Two of them tell what an installation created, and what an uninstallation left behind.
type inventory map[string]types.UID

// pageSize bounds one answer of the API server.
const pageSize = 500

// takeInventory lists the objects of every kind that the API server can list, in the preferred version of its group. Events are
// left out: they expire by themselves. An API group that does not answer is an error, because an APIService without its
// Service is something that was left behind.
func takeInventory(ctx context.Context, cfg *rest.Config) (inventory, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = rest.NoWarnings{} // of deprecated kinds
	discover, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	lists, err := discover.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("discover the kinds: %w", err)
	}
	all := inventory{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") || r.Kind == "Event" {
				continue
			}
			if err := all.add(ctx, client.Resource(gv.WithResource(r.Name)), strings.TrimPrefix(gv.Group+"/"+r.Kind, "/")); err != nil {
				return nil, fmt.Errorf("list %s of %s: %w", r.Name, list.GroupVersion, err)
			}
		}
	}
	return all, nil
}

func (o inventory) add(ctx context.Context, client metadata.Getter, kind string) error {
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := client.List(ctx, opts)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return nil // the kind was removed since
		}
		if err != nil {
			return err
		}
		for _, item := range page.Items {
			o[kind+" "+strings.TrimPrefix(item.Namespace+"/"+item.Name, "/")] = item.UID
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return nil
		}
	}
}

// settled reports, by an error, that the control plane has not made yet what it makes in each namespace: a cluster that
// has just started creates objects of its own for a while.
func (o inventory) settled() error {
	for identity := range o {
		namespace, ok := strings.CutPrefix(identity, "Namespace ")
		if !ok {
			continue
		}
		for _, made := range []string{"ServiceAccount " + namespace + "/default", "ConfigMap " + namespace + "/kube-root-ca.crt"} {
			if _, ok := o[made]; !ok {
				return fmt.Errorf("the cluster has no %s yet", made)
			}
		}
	}
	return nil
}

// since returns the identities of objects that were created after before was listed, sorted.
func (o inventory) since(before inventory) []string {
	var out []string
	for identity, uid := range o {
		if before[identity] != uid {
			out = append(out, identity)
		}
	}
	slices.Sort(out)
	return out
}

// errLeft means that objects are left.
var errLeft = errors.New("objects are left")

// leftSince returns errLeft with the objects that were created after before was listed and match none of the prefixes in
// expected.
func leftSince(ctx context.Context, cfg *rest.Config, before inventory, expected ...string) error {
	now, err := takeInventory(ctx, cfg)
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(now.since(before), func(identity string) bool {
		return slices.ContainsFunc(expected, func(prefix string) bool { return strings.HasPrefix(identity, prefix) })
	})
	if len(left) > 0 {
		return fmt.Errorf("%w: %s", errLeft, strings.Join(left, ", "))
	}
	return nil
}

func TestSince(t *testing.T) {
	before := inventory{"Namespace a": "1", "Pod a/old": "2", "Pod a/replaced": "3"}
	now := inventory{"Namespace a": "1", "Pod a/replaced": "4", "apps/Deployment a/new": "5"}
	if diff := cmp.Diff([]string{"Pod a/replaced", "apps/Deployment a/new"}, now.since(before)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestSettled(t *testing.T) {
	o := inventory{"Namespace a": "1", "ServiceAccount a/default": "2"}
	if err := o.settled(); err == nil {
		t.Error("settled without the ConfigMap of the authorities")
	}
	o["ConfigMap a/kube-root-ca.crt"] = "3"
	if err := o.settled(); err != nil {
		t.Error(err)
	}
}
