// SPDX-License-Identifier: Apache-2.0

// Package inventory lists every object of a cluster, of all kinds, and compares two lists: what an installation
// created, and what an uninstallation left behind.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Objects are the objects of a cluster at one time: their UIDs by identity, such as "apps/Deployment team/chat".
type Objects map[string]types.UID

// pageSize bounds one answer of the API server.
const pageSize = 500

// List lists the objects of every kind that the API server can list, in the preferred version of its group. Events are
// left out: they expire by themselves. An API group that does not answer is an error, because an APIService without its
// Service is something that was left behind.
func List(ctx context.Context, cfg *rest.Config) (Objects, error) {
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
	all := Objects{}
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

func (o Objects) add(ctx context.Context, client metadata.Getter, kind string) error {
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

// Settled reports, by an error, that the control plane has not made yet what it makes in each namespace: a cluster that
// has just started creates objects of its own for a while.
func (o Objects) Settled() error {
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

// Since returns the identities of objects that were created after before was listed, sorted.
func (o Objects) Since(before Objects) []string {
	var out []string
	for identity, uid := range o {
		if before[identity] != uid {
			out = append(out, identity)
		}
	}
	slices.Sort(out)
	return out
}

// ErrLeft means that objects are left.
var ErrLeft = errors.New("objects are left")

// Left returns ErrLeft with the objects that were created after before was listed and match none of the prefixes in
// expected.
func Left(ctx context.Context, cfg *rest.Config, before Objects, expected ...string) error {
	now, err := List(ctx, cfg)
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(now.Since(before), func(identity string) bool {
		return slices.ContainsFunc(expected, func(prefix string) bool { return strings.HasPrefix(identity, prefix) })
	})
	if len(left) > 0 {
		return fmt.Errorf("%w: %s", ErrLeft, strings.Join(left, ", "))
	}
	return nil
}
