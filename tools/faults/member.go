package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/tools/process"
)

// memberArgs are what the process of a member of an external cluster of etcd needs: its folder, which has its
// certificate, its URLs for clients and for other members, and all members in etcd's way.
type memberArgs struct{ Name, Folder, Client, Peer, Cluster string }

// asMember runs a member of an external cluster of etcd, if this is one. It has etcd's defaults, as that of an
// operator who installs etcd.
func asMember(args []string) (is bool, err error) {
	if len(args) != 3 || args[1] != "-member" {
		return false, nil
	}
	var a memberArgs
	if err := json.Unmarshal([]byte(args[2]), &a); err != nil {
		return true, err
	}
	return true, a.run()
}

func (a memberArgs) run() error {
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster, c.EnableGRPCGateway = a.Name, filepath.Join(a.Folder, "etcd"), a.Cluster, false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(zapcore.NewCore(
		zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(os.Stderr), zap.WarnLevel)))
	secure := transport.TLSInfo{CertFile: filepath.Join(a.Folder, certificateFile),
		KeyFile: filepath.Join(a.Folder, keyFile), TrustedCAFile: filepath.Join(a.Folder, caFile), ClientCertAuth: true}
	c.ClientTLSInfo, c.PeerTLSInfo = secure, secure
	client, err := url.Parse(a.Client)
	if err != nil {
		return err
	}
	peer, err := url.Parse(a.Peer)
	if err != nil {
		return err
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	member, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	select {
	case err = <-member.Err():
	case <-member.Server.StopNotify():
		err = errors.New("the member has stopped")
	}
	return err
}

// Files of TLS in the folder of a member; clients use those of the first one.
const (
	caFile          = "ca.pem"
	certificateFile = "member.pem"
	keyFile         = "member.key"
)

// addMembers starts an external cluster of etcd, whose members are the places after the servers.
func (f *aFleet) addMembers(members int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ca, err := auth.NewCA("etcd", time.Now())
	if err != nil {
		return err
	}
	at := func(i, port int) string {
		place := f.serverCount + i
		return "https://" + net.JoinHostPort(f.net.address(place), fmt.Sprint(f.net.port(place, port)))
	}
	var cluster []string
	for i := range members {
		cluster = append(cluster, memberName(i)+"="+at(i, 2380))
		f.endpoints = append(f.endpoints, at(i, 2379))
	}
	for i := range members {
		folder := f.data(memberName(i))
		if err := f.disk(folder); err != nil {
			return err
		}
		certificate, key, err := ca.MemberPEM([]string{f.net.address(f.serverCount + i)}, time.Now())
		if err != nil {
			return err
		}
		for name, data := range map[string][]byte{caFile: ca.CertificatePEM(), certificateFile: certificate,
			keyFile: key} {
			if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
				return err
			}
		}
		args, err := json.Marshal(memberArgs{memberName(i), folder, at(i, 2379), at(i, 2380),
			strings.Join(cluster, ",")})
		if err != nil {
			return err
		}
		p := &process.Program{Name: memberName(i), Log: filepath.Join(f.folder, memberName(i)+".log"),
			Args: f.net.inSpace(f.serverCount+i, self, "-member", string(args))}
		f.members = append(f.members, p)
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

func memberName(i int) string { return fmt.Sprintf("e%d", i) }
