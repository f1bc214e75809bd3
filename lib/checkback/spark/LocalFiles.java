package checkback;

import io.delta.storage.HDFSLogStore;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/** Hadoop's files in local folders, but sets permissions itself: Hadoop starts `chmod` for each file that it writes. */
public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            if (permission.getStickyBit()) {
                super.setPermission(path, permission);
            } else {
                Files.setPosixFilePermissions(
                        pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
            }
        }
    }

    /**
     * Delta's commits in local folders, but linked into place: of processes and threads that write one version one
     * succeeds. Delta's own look whether it is there, and then rename. Asks only about the files it wants: Delta asks
     * about each of the log.
     */
    public static class Log extends HDFSLogStore {
        public Log(Configuration conf) {
            super(conf);
        }

        public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
            if (overwrite.booleanValue()) {
                super.write(path, actions, overwrite, conf);
                return;
            }
            File file = new File(path.toUri().getPath());
            File staged = new File(file.getParentFile(), "." + file.getName() + "." + UUID.randomUUID() + ".tmp");
            FileOutputStream out = new FileOutputStream(staged);
            try {
                while (actions.hasNext()) {
                    out.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
                }
                out.getFD().sync();
                out.close();
                Files.createLink(file.toPath(), staged.toPath());
            } catch (FileAlreadyExistsException taken) {
                // over NFS a request that was done and then repeated fails, too
                if (!Integer.valueOf(2).equals(Files.getAttribute(staged.toPath(), "unix:nlink"))) {
                    throw taken;
                }
            } finally {
                out.close();
                Files.deleteIfExists(staged.toPath());
            }
        }

        public Iterator listFrom(Path path, Configuration conf) throws IOException {
            FileSystem files = path.getFileSystem(conf);
            String[] names = new File(path.getParent().toUri().getPath()).list();
            if (names == null) {
                throw new FileNotFoundException("No such file or directory: " + path.getParent());
            }
            List wanted = new ArrayList();
            for (int i = 0; i < names.length; i++) {
                if (names[i].compareTo(path.getName()) >= 0 && !names[i].startsWith(".")) {
                    wanted.add(names[i]);
                }
            }
            Collections.sort(wanted);
            List found = new ArrayList();
            for (int i = 0; i < wanted.size(); i++) {
                try {
                    found.add(files.getFileStatus(new Path(path.getParent(), (String) wanted.get(i))));
                } catch (FileNotFoundException gone) {
                    // removed since: as if it had been before
                }
            }
            return found.iterator();
        }
    }
}
